-- The newest run of a session.
SELECT r.id AS run_id, r.status FROM sessions s JOIN runs r ON r.tenant_id = s.tenant_id AND r.id = s.head_run_id
WHERE s.tenant_id = %(tenant_id)s AND s.id = %(session_id)s
