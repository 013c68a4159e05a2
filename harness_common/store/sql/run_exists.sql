-- Tell whether a tenant has a run.
SELECT id FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s
