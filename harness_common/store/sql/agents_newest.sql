-- The newest versions of some agents, with what they say they are for.
SELECT DISTINCT ON (name) name, version, spec->>'description' AS description
FROM agents WHERE tenant_id = %(tenant_id)s AND name = ANY(%(names)s) ORDER BY name, version DESC
