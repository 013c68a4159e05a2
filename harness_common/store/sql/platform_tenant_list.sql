-- Tenants with their limits and what they have going, newest first, for a caller whose tenant runs the platform.
SELECT * FROM platform_tenant_list(%(only)s::uuid, %(before)s::uuid, %(limit)s)
