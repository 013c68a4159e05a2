-- Delete what other frameworks kept of runs.
WITH threads AS (DELETE FROM foreign_checkpoints WHERE tenant_id = %(tenant_id)s AND thread = ANY(%(threads)s) RETURNING 1),
     writes AS (DELETE FROM foreign_writes WHERE tenant_id = %(tenant_id)s AND thread = ANY(%(threads)s) RETURNING 1)
SELECT ((SELECT count(*) FROM threads) + (SELECT count(*) FROM writes))::int AS foreign_rows
