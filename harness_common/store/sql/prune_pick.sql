-- Runs of one tenant that ended before a time and have lost so much already, oldest first, held with their sessions; those that somebody holds are passed over.
SELECT r.id, r.session_id, r.finished_at, r.next_seq + r.step + r.messages AS rows
FROM runs r JOIN sessions s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
WHERE r.tenant_id = %(tenant_id)s AND r.pruned = %(pruned)s AND r.finished_at < %(before)s
  AND (r.finished_at, r.id) > (%(after)s::timestamptz, %(after_id)s::uuid)
ORDER BY r.finished_at, r.id LIMIT %(limit)s
FOR UPDATE OF r, s SKIP LOCKED
