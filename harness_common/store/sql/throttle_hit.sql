-- A provider refused a call (or said that its next one would be): pause its scope for all who share it.
-- A hit counts when the call was made after the pause known before it: then the pace was too fast, it slows, and the slots given out are void.
-- The others are of calls that were under way together: they can only lengthen the pause. `since` is when the first refused call was made.
INSERT INTO throttles AS t (scope, until, next_at, interval_s, limit_per_s, code, reason, hits, since)
SELECT %(scope)s, p.until, p.until, greatest(%(min_s)s, coalesce(%(slack)s / %(per_s)s::float8, %(start_s)s)),
    %(per_s)s, %(code)s, %(reason)s, %(hits)s, %(called_at)s
FROM (SELECT clock_timestamp() + make_interval(secs => %(wait_s)s) AS until) p
ON CONFLICT (scope) DO UPDATE SET
    until = CASE WHEN excluded.hits > 0 THEN greatest(t.until, excluded.until) ELSE t.until END,
    next_at = CASE WHEN excluded.hits > 0 AND excluded.since >= t.until THEN excluded.until ELSE t.next_at END,
    interval_s = CASE
        WHEN excluded.hits = 0 OR excluded.since < t.until THEN greatest(t.interval_s, %(slack)s / excluded.limit_per_s)
        WHEN coalesce(excluded.limit_per_s, t.limit_per_s) IS NULL THEN least(%(max_s)s, t.interval_s * %(slower)s)
        ELSE least(4 * %(slack)s / coalesce(excluded.limit_per_s, t.limit_per_s),
                   greatest(%(slack)s / coalesce(excluded.limit_per_s, t.limit_per_s), t.interval_s * %(slower_known)s)) END,
    limit_per_s = coalesce(excluded.limit_per_s, t.limit_per_s),
    hits = t.hits + (excluded.hits > 0 AND excluded.since >= t.until)::int,
    code = CASE WHEN excluded.hits > 0 THEN excluded.code ELSE t.code END,
    reason = CASE WHEN excluded.hits > 0 THEN excluded.reason ELSE t.reason END,
    updated_at = clock_timestamp()
RETURNING scope, until, interval_s, hits, updated_at, clock_timestamp() AS now, set_config('synchronous_commit', 'off', true)
