-- The throttles that hold now, for a process that starts or may have missed a broadcast.
SELECT scope, until, interval_s, hits, updated_at, clock_timestamp() AS now FROM throttles
WHERE greatest(next_at, until) > clock_timestamp() - make_interval(secs => %(ends_after_s)s)
