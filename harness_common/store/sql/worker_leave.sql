-- A worker process left in an orderly way: it holds nothing, and what it may have had in hand is rung again.
WITH gone AS (
    DELETE FROM workers WHERE incarnation = %(worker)s
    AND NOT EXISTS (SELECT 1 FROM runs WHERE claimed_by = %(worker)s AND claim_id IS NOT NULL)
    RETURNING queues
)
UPDATE runs SET wake_at = clock_timestamp() FROM gone
WHERE runs.status = 'running' AND runs.claim_id IS NULL AND (runs.queue || CASE WHEN runs.deaths >= 2 THEN '.quarantine' ELSE '' END) = ANY(gone.queues)
