-- Change a tenant's limit on running runs; returns the old one.
WITH old AS (SELECT tenant_id, max_running FROM tenant_slots WHERE tenant_id = %(tenant_id)s FOR UPDATE)
UPDATE tenant_slots SET max_running = %(max_running)s FROM old WHERE tenant_slots.tenant_id = old.tenant_id
RETURNING old.max_running
