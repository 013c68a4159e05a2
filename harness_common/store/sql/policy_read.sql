-- One version of a tenant's policy (empty agent name) or of an agent's.
SELECT rules FROM policies WHERE tenant_id = %(tenant_id)s AND agent_name = %(agent_name)s AND version = %(version)s
