-- Read a run as it is now.
SELECT *, clock_timestamp() AS now FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s
