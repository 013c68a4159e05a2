-- Count faults of a tool, and the calls that went well since the last count. Enough faults within a window open its breaker, unless more calls
-- went well. A failed probe keeps it open, for twice as long. Faults of calls that were under way when it opened change nothing.
-- `opened` tells whether this very count opened it. Rows of tools that are well again go after an hour.
WITH old AS (
    DELETE FROM tool_breakers d USING (
        SELECT tenant_id, tool FROM tool_breakers WHERE state = 'closed' AND window_at < clock_timestamp() - interval '1 hour'
          AND (tenant_id, tool) <> (%(tenant_id)s, %(tool)s) FOR UPDATE SKIP LOCKED) AS o
    WHERE d.tenant_id = o.tenant_id AND d.tool = o.tool
)
INSERT INTO tool_breakers AS b (tenant_id, tool, state, failures, successes, opens, opened_by, opened_at, until, reason)
SELECT %(tenant_id)s, %(tool)s, CASE WHEN t.trips THEN 'open' ELSE 'closed' END, %(failures)s::int, %(successes)s::int, t.trips::int,
    CASE WHEN t.trips THEN %(token)s::uuid END, CASE WHEN t.trips THEN clock_timestamp() END,
    CASE WHEN t.trips THEN clock_timestamp() + make_interval(secs => %(open_s)s) END, %(reason)s
FROM (SELECT %(failures)s::int >= %(limit)s::int AND %(failures)s::int >= %(share)s::float8 * (%(failures)s::int + %(successes)s::int) AS trips) AS t
ON CONFLICT (tenant_id, tool) DO UPDATE SET (state, failures, successes, window_at, opens, opened_by, opened_at, until, probe_id, probe_until,
        reason, updated_at) = (
    SELECT CASE WHEN v.was_open OR v.trips THEN 'open' ELSE 'closed' END, v.failures, v.successes,
        CASE WHEN v.fresh THEN clock_timestamp() ELSE b.window_at END,
        CASE WHEN v.probe_failed THEN b.opens + 1 WHEN v.trips THEN 1 ELSE b.opens END,
        CASE WHEN v.probe_failed OR v.trips THEN %(token)s::uuid ELSE b.opened_by END,
        CASE WHEN v.trips THEN clock_timestamp() ELSE b.opened_at END,
        CASE WHEN v.probe_failed THEN clock_timestamp() + make_interval(secs => least(%(open_max_s)s, %(open_s)s * power(2, least(b.opens, 20))))
             WHEN v.trips THEN clock_timestamp() + make_interval(secs => %(open_s)s) ELSE b.until END,
        CASE WHEN v.probe_failed OR v.trips THEN NULL ELSE b.probe_id END,
        CASE WHEN v.probe_failed OR v.trips THEN NULL ELSE b.probe_until END,
        CASE WHEN v.was_open AND NOT v.probe_failed THEN b.reason ELSE excluded.reason END, clock_timestamp()
    FROM (
        SELECT w.*, NOT w.was_open AND w.failures >= %(limit)s::int AND w.failures >= %(share)s::float8 * (w.failures + w.successes) AS trips,
            w.was_open AND b.probe_id = %(probe_id)s::uuid IS TRUE AS probe_failed
        FROM (
            SELECT n.*, CASE WHEN n.fresh THEN 0 ELSE b.failures END + excluded.failures AS failures,
                CASE WHEN n.fresh THEN 0 ELSE b.successes END + excluded.successes AS successes
            FROM (SELECT b.state = 'open' AS was_open,
                         b.state = 'closed' AND b.window_at < clock_timestamp() - make_interval(secs => %(window_s)s) AS fresh) AS n
        ) AS w
    ) AS v)
RETURNING tenant_id, tool, state, failures, until, reason, probe_until, updated_at, coalesce(opened_by = %(token)s::uuid, false) AS opened,
    set_config('synchronous_commit', 'off', true)
