-- Delete some of what another framework kept of one long run.
WITH old AS (
    SELECT ns, checkpoint_id FROM foreign_checkpoints WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s ORDER BY checkpoint_id LIMIT %(limit)s),
gone AS (DELETE FROM foreign_checkpoints WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s AND (ns, checkpoint_id) IN (SELECT ns, checkpoint_id FROM old) RETURNING 1),
writes AS (DELETE FROM foreign_writes WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s AND (ns, checkpoint_id) IN (SELECT ns, checkpoint_id FROM old))
SELECT count(*)::int AS rows FROM gone
