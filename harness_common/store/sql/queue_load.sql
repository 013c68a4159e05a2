-- Per queue: what its live workers can hold, and what runs on it: what they hold or were rung for; `total` is what all live workers can hold.
WITH alive AS (
    SELECT queues, concurrency FROM workers
    WHERE died_at IS NULL AND stopping_at IS NULL AND seen_at > clock_timestamp() - make_interval(secs => %(lease_s)s)
)
SELECT queue, sum(capacity)::int AS capacity, sum(running)::int AS running, (SELECT coalesce(sum(concurrency), 0)::int FROM alive) AS total
FROM (
    SELECT q.queue, sum(alive.concurrency) AS capacity, 0 AS running FROM alive, unnest(alive.queues) AS q (queue) GROUP BY q.queue
    UNION ALL
    SELECT queue, 0, count(*) FROM runs WHERE status = 'running' GROUP BY queue
) AS load GROUP BY queue
