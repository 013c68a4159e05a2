-- The runs of a session that are not over and not yet asked to stop, newest first; one row without a run when there is none.
SELECT r.id AS run_id FROM sessions s
LEFT JOIN LATERAL (
    SELECT id FROM runs WHERE tenant_id = s.tenant_id AND session_id = s.id AND finished_at IS NULL AND NOT cancel_requested
    ORDER BY id DESC LIMIT 200) AS r ON true
WHERE s.tenant_id = %(tenant_id)s AND s.id = %(session_id)s
ORDER BY r.id DESC
