-- The runs of a tenant that ended since a time, of the newest 10,000: by slices of a window that begins at `since`, status and, where
-- they failed, why; with cost and tokens of those that ended today. Before the window the slice is negative.
SELECT floor(extract(epoch FROM (finished_at - %(since)s::timestamptz)) / %(slice_s)s::float8)::int AS slice, status,
       CASE WHEN status = 'failed' THEN coalesce(error->>'code', stop_reason, '') END AS code, count(*)::int AS runs, max(finished_at) AS last_at,
       count(*) FILTER (WHERE finished_at >= %(midnight)s)::int AS runs_today,
       coalesce(sum(cost_usd) FILTER (WHERE finished_at >= %(midnight)s), 0)::float8 AS cost_today,
       coalesce(sum(input_tokens + output_tokens) FILTER (WHERE finished_at >= %(midnight)s), 0)::bigint AS tokens_today
FROM (SELECT finished_at, status, error, stop_reason, cost_usd, input_tokens, output_tokens FROM runs
      WHERE tenant_id = %(tenant_id)s AND finished_at >= least(%(since)s::timestamptz, %(midnight)s::timestamptz)
      ORDER BY finished_at DESC LIMIT 10000) AS ended
GROUP BY 1, 2, 3
