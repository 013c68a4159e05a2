-- Hold the slots of several tenants until the transaction ends: in the order of their ids, tenant before run.
SELECT tenant_id, running, max_running, granted, clock_timestamp() AS now FROM tenant_slots
WHERE tenant_id = ANY(%(tenants)s::uuid[]) ORDER BY tenant_id FOR UPDATE
