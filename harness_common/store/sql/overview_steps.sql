-- How long steps of a tenant take, and how many were tried again or taken over: of up to 150 recent runs the last 20 steps and 100 events.
-- The row without a kind is of all of them.
WITH recent AS (
    (SELECT id, next_seq FROM runs WHERE tenant_id = %(tenant_id)s AND finished_at >= %(since)s ORDER BY finished_at DESC LIMIT 100)
    UNION
    (SELECT id, next_seq FROM runs WHERE tenant_id = %(tenant_id)s AND updated_at >= %(since)s AND id IN (
        SELECT id FROM runs WHERE tenant_id = %(tenant_id)s ORDER BY id DESC LIMIT 50))
), steps AS (
    SELECT c.kind, c.attempt, (extract(epoch FROM c.created_at - c.started_at) * 1000)::float8 AS ms
    FROM recent CROSS JOIN LATERAL (
        SELECT kind, attempt, started_at, created_at FROM checkpoints k
        WHERE k.tenant_id = %(tenant_id)s AND k.run_id = recent.id ORDER BY k.step DESC LIMIT 20) AS c
    WHERE c.created_at >= %(since)s
), taken AS (
    SELECT coalesce(sum(e.taken), 0)::int AS taken, count(*)::int AS runs FROM recent CROSS JOIN LATERAL (
        SELECT count(*) AS taken FROM events v
        WHERE v.tenant_id = %(tenant_id)s AND v.run_id = recent.id AND v.seq > recent.next_seq - 100 AND v.type = 'run.recovered') AS e
)
SELECT s.*, taken.taken, taken.runs FROM taken LEFT JOIN (
    SELECT kind, count(*)::int AS steps, count(*) FILTER (WHERE attempt > 1)::int AS again,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS p50_ms, percentile_cont(0.99) WITHIN GROUP (ORDER BY ms) AS p99_ms
    FROM steps GROUP BY GROUPING SETS ((kind), ())) AS s ON true
ORDER BY s.kind NULLS FIRST
