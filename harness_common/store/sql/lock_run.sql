-- Read a run and hold its row until the transaction ends: how outside inputs are put in order.
SELECT *, clock_timestamp() AS now FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s FOR UPDATE
