-- Let held runs of concurrency keys go, the longest waiting first, while fewer of their key run or were let go than may: the
-- strictest of them says how many.
-- Looks at some keys after a cursor (a loose index scan); answers with the last key looked at, null when it was the last there is.
WITH RECURSIVE key AS (
    (SELECT tenant_id, concurrency_key FROM runs WHERE status = 'queued' AND held_for = 'key'
       AND (tenant_id, concurrency_key) > (%(tenant_id)s::uuid, %(key)s::text)
     ORDER BY tenant_id, concurrency_key LIMIT 1)
    UNION ALL
    SELECT n.tenant_id, n.concurrency_key FROM key k CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.concurrency_key FROM runs r WHERE r.status = 'queued' AND r.held_for = 'key'
          AND (r.tenant_id, r.concurrency_key) > (k.tenant_id, k.concurrency_key)
        ORDER BY r.tenant_id, r.concurrency_key LIMIT 1) AS n
), page AS MATERIALIZED (
    SELECT tenant_id, concurrency_key FROM key LIMIT %(keys)s
), go AS MATERIALIZED (
    SELECT c.tenant_id, c.id FROM page p
    CROSS JOIN LATERAL (
        SELECT concurrency_max FROM runs r WHERE r.tenant_id = p.tenant_id AND r.concurrency_key = p.concurrency_key
          AND r.status = 'queued' AND r.held_for = 'key' ORDER BY r.queued_at LIMIT 1) AS head
    CROSS JOIN LATERAL (
        SELECT count(*)::int AS n, min(found.concurrency_max) AS strictest FROM (
            SELECT r.concurrency_max FROM runs r WHERE r.tenant_id = p.tenant_id AND r.concurrency_key = p.concurrency_key
              AND (r.status = 'running' OR (r.status = 'queued' AND r.held_for IS NULL)) LIMIT head.concurrency_max) AS found) AS busy
    CROSS JOIN LATERAL (
        SELECT first.tenant_id, first.id, busy.n + row_number() OVER line AS place,
            least(busy.strictest, min(first.concurrency_max) OVER line) AS strictest
        FROM (
            SELECT r.tenant_id, r.id, r.queued_at, r.concurrency_max FROM runs r
            WHERE r.tenant_id = p.tenant_id AND r.concurrency_key = p.concurrency_key AND r.status = 'queued' AND r.held_for = 'key'
            ORDER BY r.queued_at LIMIT greatest(0, least(head.concurrency_max - busy.n, %(most)s))) AS first
        WINDOW line AS (ORDER BY first.queued_at ROWS UNBOUNDED PRECEDING)) AS c
    WHERE c.place <= c.strictest
), gone AS (
    UPDATE runs SET held_for = NULL FROM go
    WHERE runs.tenant_id = go.tenant_id AND runs.id = go.id AND runs.status = 'queued' AND runs.held_for = 'key'
    RETURNING runs.id
)
SELECT (SELECT count(*) FROM gone) AS released, (SELECT count(*) FROM page) AS looked_at, last.tenant_id, last.concurrency_key
FROM (SELECT 1) AS one LEFT JOIN (
    SELECT tenant_id, concurrency_key FROM page ORDER BY tenant_id DESC, concurrency_key DESC LIMIT 1) AS last ON true
