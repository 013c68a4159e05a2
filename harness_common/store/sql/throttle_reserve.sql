-- Give out the next slots of a throttled scope, one interval apart, none before the pause ends and none beyond the horizon (`dealt` says how many).
-- No row back: it is not throttled (any more). Calls that went well since the last time quicken the pace, down to what the provider's own rate
-- allows. Asynchronous commit: the run's own follows.
WITH held AS (
    SELECT scope, greatest(until, clock_timestamp()) AS opens, greatest(next_at, until, clock_timestamp()) AS first,
        greatest(%(min_s)s, %(slack)s / limit_per_s, interval_s * power(%(faster)s, %(worked)s)) AS interval_s
    FROM throttles WHERE scope = %(scope)s FOR UPDATE
), deal AS (
    SELECT scope, first, interval_s,
        least(%(n)s, greatest(0, 1 + floor((%(horizon_s)s - extract(epoch FROM first - opens)) / interval_s)))::int AS dealt
    FROM held
)
UPDATE throttles t SET
    interval_s = deal.interval_s, next_at = deal.first + make_interval(secs => deal.dealt * deal.interval_s), updated_at = clock_timestamp()
FROM deal WHERE t.scope = deal.scope
RETURNING t.scope, t.until, t.interval_s, t.hits, t.updated_at, deal.first, deal.dealt, clock_timestamp() AS now,
    set_config('synchronous_commit', 'off', true)
