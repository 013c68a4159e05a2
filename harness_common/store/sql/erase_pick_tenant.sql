-- Runs of a tenant that are over, held with their sessions.
SELECT r.id, r.session_id, r.next_seq + r.step + r.messages AS rows
FROM runs r JOIN sessions s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
WHERE r.tenant_id = %(tenant_id)s AND r.finished_at IS NOT NULL
LIMIT %(limit)s FOR UPDATE OF r, s SKIP LOCKED
