-- Take the wish to look at an MCP server now, unless another worker has it.
UPDATE mcp_servers SET check_until = clock_timestamp() + make_interval(secs => %(hold_s)s)
WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND check_done < check_asked
  AND (check_until IS NULL OR check_until < clock_timestamp())
RETURNING tenant_id, id, name AS server, target, effects, timeout_s, generation, seen_hash, listed_at, check_asked
