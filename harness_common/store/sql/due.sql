-- Runs whose time has come, except unanswered doorbells (ring.sql), and when the next one is due.
SELECT tenant_id, id AS run_id, status, claim_id, claimed_by FROM runs
WHERE wake_at <= clock_timestamp() AND NOT (status = 'running' AND claim_id IS NULL)
ORDER BY wake_at LIMIT %(batch)s
