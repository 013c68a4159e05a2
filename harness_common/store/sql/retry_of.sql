-- Find the first retry of a run: one goes on in its source's session, which no other fork does.
SELECT retry.id FROM runs source
JOIN runs retry ON retry.tenant_id = source.tenant_id AND retry.forked_from = source.id AND retry.session_id = source.session_id
WHERE source.tenant_id = %(tenant_id)s AND source.id = %(run_id)s
ORDER BY retry.id LIMIT 1
