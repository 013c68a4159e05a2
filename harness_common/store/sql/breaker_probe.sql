-- Let one call try a tool whose breaker has been open long enough. No row: it is closed (again). `mine` tells whether this call is the one;
-- a probe that never answers holds the others back until `probe_until`.
WITH held AS (
    SELECT * FROM tool_breakers WHERE tenant_id = %(tenant_id)s AND tool = %(tool)s AND state = 'open' FOR UPDATE
), mine AS (
    UPDATE tool_breakers b SET probe_id = %(probe_id)s, probe_until = clock_timestamp() + make_interval(secs => %(hold_s)s),
        updated_at = clock_timestamp()
    FROM held WHERE b.tenant_id = held.tenant_id AND b.tool = held.tool AND held.until <= clock_timestamp()
      AND coalesce(held.probe_until, '-infinity') <= clock_timestamp()
    RETURNING b.probe_until, b.updated_at
)
SELECT held.tenant_id, held.tool, held.state, held.failures, held.until, held.reason, coalesce(mine.probe_until, held.probe_until) AS probe_until,
    coalesce(mine.updated_at, held.updated_at) AS updated_at, mine.probe_until IS NOT NULL AS mine,
    set_config('synchronous_commit', 'off', true)
FROM held LEFT JOIN mine ON true
