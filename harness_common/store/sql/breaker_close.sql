-- The probe went well: the breaker closes. None comes back when the probe was another's since, or somebody closed it by hand.
DELETE FROM tool_breakers WHERE tenant_id = %(tenant_id)s AND tool = %(tool)s AND state = 'open' AND probe_id = %(probe_id)s
RETURNING tool, clock_timestamp() AS now, set_config('synchronous_commit', 'off', true)
