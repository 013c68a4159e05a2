-- Worker processes not known to be dead.
SELECT incarnation, name, pid, queues, seen_at,
       extract(epoch FROM clock_timestamp() - seen_at)::float8 AS silent_s, clock_timestamp() AS now
FROM workers WHERE died_at IS NULL
