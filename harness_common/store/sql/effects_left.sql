-- How many calls of a step are unknown.
SELECT count(*)::int AS n FROM tool_calls
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND status = 'unknown'
