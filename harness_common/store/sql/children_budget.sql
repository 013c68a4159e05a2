-- What the children of a step have used or may still use.
SELECT count(*)::int AS started,
       coalesce(sum(CASE WHEN finished_at IS NULL THEN (limits->>'max_tokens')::bigint ELSE input_tokens + output_tokens END), 0)::bigint AS tokens,
       coalesce(sum(CASE WHEN finished_at IS NULL THEN (limits->>'max_cost_usd')::float8 ELSE cost_usd END), 0)::float8 AS cost_usd
FROM runs WHERE tenant_id = %(tenant_id)s AND parent_run_id = %(run_id)s AND parent_step = %(step)s
