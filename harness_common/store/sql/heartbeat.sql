-- One batched heartbeat of a worker process; answers with claims to stop, claims that the process does not know of, and the live throttles.
-- A process that was taken for dead and is not says so: its old claims are gone, and new ones are its own again.
WITH was AS (
    SELECT incarnation, died_at FROM workers WHERE incarnation = %(worker)s FOR UPDATE
), seen AS (
    UPDATE workers SET seen_at = clock_timestamp(), held = %(held)s, queue_age_s = %(queue_age_s)s, died_at = NULL, died_why = NULL,
        sandbox = coalesce(%(sandbox)s::jsonb, workers.sandbox)
    FROM was WHERE workers.incarnation = was.incarnation
    RETURNING was.died_at
), ended AS (
    DELETE FROM throttles WHERE greatest(next_at, until) < clock_timestamp() - make_interval(secs => %(throttle_ends_after_s)s)
    RETURNING scope
)
SELECT NULL::uuid AS tenant_id, NULL::uuid AS run_id, NULL::uuid AS claim_id, false AS cancel_requested,
       seen.died_at IS NOT NULL AS condemned, clock_timestamp() AS now, set_config('synchronous_commit', 'off', true),
       (SELECT jsonb_agg(to_jsonb(t)) FROM throttles t WHERE t.scope NOT IN (SELECT scope FROM ended)) AS throttles
FROM seen
UNION ALL
SELECT r.tenant_id, r.id, r.claim_id, r.cancel_requested, false, clock_timestamp(), NULL, NULL FROM runs r
WHERE r.claimed_by = %(worker)s AND r.claim_id IS NOT NULL
  AND (r.cancel_requested OR (r.claim_id <> ALL(%(claims)s) AND r.claimed_at < clock_timestamp() - make_interval(secs => %(orphan_after_s)s)))
