-- Say what a look at an MCP server has found.
UPDATE mcp_servers SET check_done = greatest(check_done, %(asked)s), check_until = NULL,
    checked = %(checked)s::jsonb || jsonb_build_object('at', clock_timestamp())
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
RETURNING check_done
