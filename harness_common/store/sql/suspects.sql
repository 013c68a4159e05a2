-- What a supervisor asks about the suspects of its queues: how many wait, how many of them wait for a queue that no live
-- process serves, and whether its own quarantine process holds a run. Bounded by time, so that it reads what is due soon only:
-- a suspect that was just given back is rung again within seconds.
SELECT count(*) AS waiting,
    count(*) FILTER (WHERE NOT EXISTS (
        SELECT 1 FROM workers w
        WHERE w.died_at IS NULL AND w.stopping_at IS NULL AND w.concurrency = 1 AND r.queue || '.quarantine' = ANY(w.queues))) AS unserved,
    EXISTS (SELECT 1 FROM runs WHERE claimed_by = %(worker)s::uuid AND claim_id IS NOT NULL) AS holds
FROM runs r
WHERE r.wake_at < clock_timestamp() + make_interval(secs => %(soon_s)s) AND r.status = 'running' AND r.claim_id IS NULL
  AND r.deaths >= 2 AND r.queue = ANY(%(queues)s)
