-- Messages of the runs before this one in its session, oldest first.
WITH RECURSIVE chain AS (
    SELECT id, prev_run_id, 1 AS depth FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(prev_run_id)s
    UNION ALL
    SELECT r.id, r.prev_run_id, chain.depth + 1 FROM chain JOIN runs r ON r.tenant_id = %(tenant_id)s AND r.id = chain.prev_run_id
)
SELECT m.body::text AS body FROM chain JOIN messages m ON m.tenant_id = %(tenant_id)s AND m.run_id = chain.id
ORDER BY chain.depth DESC, m.n
