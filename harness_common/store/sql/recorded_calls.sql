-- How the calls of one step of a run ended.
SELECT idx, name, arguments, status, result, error_type, trust, effect, tool_version FROM tool_calls
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s
