-- Runs of one tenant and week that have not yet lost what the week's partition holds, held with their sessions.
SELECT r.id FROM runs r JOIN sessions s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
WHERE r.tenant_id = %(tenant_id)s AND r.id >= %(low)s AND r.id < %(high)s AND r.id > %(after)s AND r.pruned & %(bit)s::int = 0
ORDER BY r.id LIMIT %(limit)s
FOR UPDATE OF r, s SKIP LOCKED
