-- Hold the slots of several tenants as slots_take.sql does, but only those that nobody else holds.
SELECT tenant_id, running, max_running, granted, clock_timestamp() AS now FROM tenant_slots
WHERE tenant_id = ANY(%(tenants)s::uuid[]) ORDER BY tenant_id FOR UPDATE SKIP LOCKED
