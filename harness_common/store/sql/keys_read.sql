-- Data keys of a tenant, the newest last; all of them without `versions`.
SELECT tenant_id, version, kek_id, wrapped FROM tenant_keys
WHERE tenant_id = %(tenant_id)s AND (%(versions)s::int[] IS NULL OR version = ANY(%(versions)s))
ORDER BY version
