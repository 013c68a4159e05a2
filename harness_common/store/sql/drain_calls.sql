-- Delete some ledger rows of one long run, the oldest first.
WITH gone AS (
    DELETE FROM tool_calls WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND (step, idx) IN (
        SELECT step, idx FROM tool_calls WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s ORDER BY step, idx LIMIT %(limit)s) RETURNING 1)
SELECT count(*)::int AS rows FROM gone
