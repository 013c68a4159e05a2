-- The names of all tools of some MCP servers that are accepted and as they were then.
SELECT s.name AS server, t.exposed
FROM mcp_tools t JOIN mcp_servers s ON s.tenant_id = t.tenant_id AND s.id = t.server_id
WHERE s.tenant_id = %(tenant_id)s AND s.name = ANY(%(names)s) AND t.accepted_hash = t.seen_hash AND t.problem IS NULL
ORDER BY s.name, t.exposed
