-- Record the tool list of an MCP server. The first one ever is accepted as it is; of later ones nothing is, until a person does.
WITH server AS (
    SELECT tenant_id, id, listed_at IS NULL AS is_first FROM mcp_servers
    WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND generation = %(generation)s
    FOR UPDATE
), listed AS (
    SELECT * FROM jsonb_to_recordset(%(tools)s::jsonb) AS t (name text, exposed text, definition jsonb, hash text, problem text)
), gone AS (
    UPDATE mcp_tools SET seen = NULL, seen_hash = NULL FROM server
    WHERE mcp_tools.tenant_id = server.tenant_id AND mcp_tools.server_id = server.id
      AND mcp_tools.name NOT IN (SELECT name FROM listed)
), put AS (
    INSERT INTO mcp_tools (tenant_id, server_id, name, exposed, seen, seen_hash, problem, accepted, accepted_hash, accepted_by, accepted_at)
    SELECT server.tenant_id, server.id, l.name, l.exposed, l.definition, l.hash, l.problem,
           CASE WHEN ok.ok THEN l.definition END, CASE WHEN ok.ok THEN l.hash END,
           CASE WHEN ok.ok THEN 'first list' END, CASE WHEN ok.ok THEN clock_timestamp() END
    FROM server, listed l, LATERAL (SELECT server.is_first AND l.problem IS NULL AS ok) AS ok
    ON CONFLICT (tenant_id, server_id, name) DO UPDATE SET
        seen = excluded.seen, seen_hash = excluded.seen_hash, problem = excluded.problem, exposed = excluded.exposed, seen_at = clock_timestamp()
)
UPDATE mcp_servers SET seen_hash = %(seen_hash)s, listed_at = coalesce(listed_at, clock_timestamp())
FROM server WHERE mcp_servers.tenant_id = server.tenant_id AND mcp_servers.id = server.id
RETURNING server.is_first
