-- Hold a tenant's slots (tenant before run) and tell how many runs may still be admitted.
SELECT least(max_running, granted) - running AS room, clock_timestamp() AS now FROM tenant_slots WHERE tenant_id = %(tenant_id)s
FOR UPDATE
