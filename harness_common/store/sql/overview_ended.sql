-- The runs of a tenant that ended since a time, of the newest 20,000: by slices of time and status, with cost and tokens.
SELECT floor(extract(epoch FROM (finished_at - %(since)s::timestamptz)) / %(slice_s)s::float8)::int AS slice, status, count(*)::int AS runs,
       sum(cost_usd)::float8 AS cost_usd, sum(input_tokens + output_tokens)::bigint AS tokens
FROM (SELECT finished_at, status, cost_usd, input_tokens, output_tokens FROM runs
      WHERE tenant_id = %(tenant_id)s AND finished_at >= %(since)s ORDER BY finished_at DESC LIMIT 20000) AS ended
GROUP BY 1, 2
