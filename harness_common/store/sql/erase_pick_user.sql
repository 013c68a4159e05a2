-- Runs of a user that are over, held with their sessions.
SELECT r.id, r.session_id, r.next_seq + r.step + r.messages AS rows
FROM sessions s JOIN runs r ON r.tenant_id = s.tenant_id AND r.session_id = s.id
WHERE s.tenant_id = %(tenant_id)s AND s.user_id = %(user_id)s AND r.finished_at IS NOT NULL
LIMIT %(limit)s FOR UPDATE OF r, s SKIP LOCKED
