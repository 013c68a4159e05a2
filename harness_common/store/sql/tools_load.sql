-- The definitions that count of named tools of a tenant.
SELECT v.name, v.version, v.definition FROM tenant_tools t JOIN tool_versions v USING (tenant_id, name, version)
WHERE t.tenant_id = %(tenant_id)s AND t.name = ANY(%(names)s)
