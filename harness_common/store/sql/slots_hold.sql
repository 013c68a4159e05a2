-- Hold a tenant's slots (tenant before run) until the transaction ends. A statement of its own: the next one sees what is then.
SELECT 1 AS held FROM tenant_slots WHERE tenant_id = %(tenant_id)s FOR UPDATE
