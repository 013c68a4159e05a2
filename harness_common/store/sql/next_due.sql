-- Seconds until the next run is due (at most a limit), and whether anything is queued.
SELECT least(%(longest_s)s, extract(epoch FROM (SELECT min(wake_at) FROM runs WHERE wake_at IS NOT NULL) - clock_timestamp()))::float8 AS due_in_s,
       EXISTS (SELECT 1 FROM runs WHERE status = 'queued') AS queued
