-- The broker lost its queues: let every unanswered doorbell be rung again now. Only by the leader of this term.
UPDATE runs SET wake_at = clock_timestamp(), rings = 0
WHERE status = 'running' AND claim_id IS NULL AND wake_at IS NOT NULL
  AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING 1 AS due
