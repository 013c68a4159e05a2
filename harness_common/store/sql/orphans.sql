-- Runs whose owner is dead or was never known.
SELECT r.tenant_id, r.id AS run_id, r.claim_id, r.claimed_by, w.name, w.concurrency = 1 AS solo, w.died_why FROM runs r
LEFT JOIN workers w ON w.incarnation = r.claimed_by
WHERE r.claim_id IS NOT NULL AND (w.incarnation IS NULL OR w.died_at IS NOT NULL)
LIMIT %(batch)s
