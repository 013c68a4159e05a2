-- Tools of a tenant's MCP servers by the names that agents use, each with its server.
SELECT t.name, t.exposed, t.accepted, t.accepted_hash, t.seen_hash, t.problem,
       s.tenant_id, s.id, s.name AS server, s.target, s.effects, s.timeout_s, s.generation, s.listed_at
FROM mcp_tools t JOIN mcp_servers s ON s.tenant_id = t.tenant_id AND s.id = t.server_id
WHERE t.tenant_id = %(tenant_id)s AND t.exposed = ANY(%(names)s)
