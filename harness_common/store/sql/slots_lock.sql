-- Hold a tenant's slots (tenant before run) and tell how many runs may still be admitted.
UPDATE tenant_slots SET last_admitted_at = clock_timestamp() WHERE tenant_id = %(tenant_id)s
RETURNING least(max_running, granted) - running AS room, clock_timestamp() AS now
