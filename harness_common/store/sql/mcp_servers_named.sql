-- A tenant's MCP servers by name.
SELECT tenant_id, id, name AS server, target, effects, timeout_s, generation, seen_hash, listed_at
FROM mcp_servers WHERE tenant_id = %(tenant_id)s AND name = ANY(%(names)s)
