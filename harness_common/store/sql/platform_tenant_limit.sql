-- Change limits of any tenant, for a caller whose tenant runs the platform; what each was and is.
SELECT changed FROM platform_tenant_limit(%(tenant_id)s, %(changes)s::jsonb, %(target)s) AS changed WHERE changed IS NOT NULL
