-- Which version of each named tool of a tenant counts, and whether it may be used.
SELECT name, version, NOT disabled AND removed_at IS NULL AS usable, removed_at IS NOT NULL AS removed
FROM tenant_tools WHERE tenant_id = %(tenant_id)s AND name = ANY(%(names)s)
