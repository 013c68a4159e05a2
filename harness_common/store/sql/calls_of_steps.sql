-- How the calls in a range of a run's steps went, in order: the ledger without arguments and results, which may be large.
SELECT step, idx, name, status, duration_ms, error_type, cost_usd FROM tool_calls
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step BETWEEN %(first)s AND %(last)s ORDER BY step, idx
