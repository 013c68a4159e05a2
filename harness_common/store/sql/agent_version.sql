-- Read one version of an agent by its name, with its id.
SELECT id, name, version, spec FROM agents WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND version = %(version)s
