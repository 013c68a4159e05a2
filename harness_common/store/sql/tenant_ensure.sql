-- Make a tenant and its slots unless they are there; the only tenant gets its whole limit granted, others by the scheduler.
WITH tenant AS (
    INSERT INTO tenants (name, operator) VALUES (%(name)s, %(operator)s) ON CONFLICT (name) DO NOTHING RETURNING tenant_id
), slots AS (
    INSERT INTO tenant_slots (tenant_id, max_running, granted)
    SELECT tenant_id, %(max_running)s,
           CASE WHEN EXISTS (SELECT 1 FROM tenants) THEN 0 ELSE least(%(max_running)s, %(global_max)s) END
    FROM tenant
)
SELECT tenant_id, true AS made FROM tenant
UNION ALL SELECT tenant_id, false FROM tenants WHERE name = %(name)s
