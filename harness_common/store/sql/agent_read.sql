-- Read one pinned version of an agent.
SELECT name, version, spec FROM agents WHERE tenant_id = %(tenant_id)s AND id = %(agent_id)s
