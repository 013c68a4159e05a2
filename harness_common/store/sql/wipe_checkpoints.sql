-- Delete the checkpoints of runs; `low` and `high` spare the partitions that hold none.
WITH gone AS (
    DELETE FROM checkpoints WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[]) AND run_id BETWEEN %(low)s AND %(high)s RETURNING 1)
SELECT count(*)::int AS checkpoints FROM gone
