-- Delete some messages of one long run, the oldest first.
WITH gone AS (
    DELETE FROM messages WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND n IN (
        SELECT n FROM messages WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s ORDER BY n LIMIT %(limit)s) RETURNING 1)
SELECT count(*)::int AS rows FROM gone
