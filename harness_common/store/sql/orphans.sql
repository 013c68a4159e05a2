-- Runs whose owner is dead or was never known. `solo`: it could hold this run only, was not told to stop, and claimed nothing else
-- (a claim whose reply got lost is worked on by nobody: which of two runs did it cannot be said).
SELECT r.tenant_id, r.id AS run_id, r.claim_id, r.claimed_by, w.name, w.died_why,
    w.concurrency = 1 AND w.stopping_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM runs o WHERE o.claimed_by = r.claimed_by AND o.claim_id IS NOT NULL AND o.claim_id <> r.claim_id) AS solo
FROM runs r
LEFT JOIN workers w ON w.incarnation = r.claimed_by
WHERE r.claim_id IS NOT NULL AND (w.incarnation IS NULL OR w.died_at IS NOT NULL)
LIMIT %(batch)s
