-- Runs of a user that are not over.
SELECT r.id, r.cancel_requested FROM sessions s JOIN runs r ON r.tenant_id = s.tenant_id AND r.session_id = s.id
WHERE s.tenant_id = %(tenant_id)s AND s.user_id = %(user_id)s AND r.finished_at IS NULL LIMIT %(limit)s
