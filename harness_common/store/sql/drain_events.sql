-- Delete some events of one long run, the oldest first.
WITH gone AS (
    DELETE FROM events WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND seq IN (
        SELECT seq FROM events WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s ORDER BY seq LIMIT %(limit)s) RETURNING 1)
SELECT count(*)::int AS rows FROM gone
