-- How far some runs of a tenant are, for whoever watches them.
SELECT id, status, next_seq - 1 AS last_seq FROM runs WHERE tenant_id = %(tenant_id)s AND id = ANY(%(run_ids)s)
