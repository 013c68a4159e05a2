-- Claimed runs whose step's time is over although their owner lives: look again later.
UPDATE runs SET wake_at = clock_timestamp() + make_interval(secs => %(again_s)s)
WHERE wake_at <= clock_timestamp() AND status = 'running' AND claim_id IS NOT NULL
  AND EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = runs.claimed_by AND w.died_at IS NULL)
  AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING tenant_id, id AS run_id, claimed_by
