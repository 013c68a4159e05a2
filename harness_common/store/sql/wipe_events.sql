-- Delete the events of runs; `low` and `high` spare the partitions that hold none.
WITH gone AS (
    DELETE FROM events WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[]) AND run_id BETWEEN %(low)s AND %(high)s RETURNING 1)
SELECT count(*)::int AS events FROM gone
