-- The broker lost its queues: let every unanswered doorbell be rung again now. Only by the leader of this term. It waits for no
-- run: one that is locked is being claimed, rung or ended.
UPDATE runs SET wake_at = clock_timestamp(), rings = 0
WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM runs
    WHERE status = 'running' AND claim_id IS NULL AND wake_at IS NOT NULL FOR UPDATE SKIP LOCKED)
  AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING 1 AS due
