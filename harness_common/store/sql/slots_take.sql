-- Hold the slots of several tenants (in the order of their ids, tenant before run) and tell how many runs each may still admit.
WITH held AS (
    SELECT tenant_id FROM tenant_slots WHERE tenant_id = ANY(%(tenants)s::uuid[]) ORDER BY tenant_id FOR UPDATE
)
UPDATE tenant_slots SET last_admitted_at = clock_timestamp() FROM held WHERE tenant_slots.tenant_id = held.tenant_id
RETURNING tenant_slots.tenant_id, least(max_running, granted) - running AS room, clock_timestamp() AS now
