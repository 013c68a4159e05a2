-- Give out the next slots of a throttled scope, one interval apart, none before the pause ends. No row back: it is not throttled (any more).
-- Calls that went well since the last time quicken the pace, down to what the provider's own rate allows. Asynchronous commit: the run's own follows.
UPDATE throttles t SET
    interval_s = greatest(%(min_s)s, %(slack)s / t.limit_per_s, t.interval_s * power(%(faster)s, %(worked)s)),
    next_at = greatest(t.next_at, t.until, clock_timestamp())
        + make_interval(secs => %(n)s * greatest(%(min_s)s, %(slack)s / t.limit_per_s, t.interval_s * power(%(faster)s, %(worked)s))),
    updated_at = clock_timestamp()
WHERE t.scope = %(scope)s
RETURNING scope, until, interval_s, hits, updated_at, next_at - make_interval(secs => %(n)s * interval_s) AS first,
    clock_timestamp() AS now, set_config('synchronous_commit', 'off', true)
