-- Delete some checkpoints of one long run, the oldest first.
WITH gone AS (
    DELETE FROM checkpoints WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step IN (
        SELECT step FROM checkpoints WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s ORDER BY step LIMIT %(limit)s) RETURNING 1)
SELECT count(*)::int AS rows FROM gone
