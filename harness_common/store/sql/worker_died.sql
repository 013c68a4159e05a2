-- Declare a worker process dead, and let every unanswered doorbell of its queues be rung again.
-- By the leader of this term, or without a term by the supervisor that saw its own child die. It waits for no run: one that is
-- locked is being claimed, rung or ended, and a batch of claims that waits for ours must not meet us waiting for its.
-- Silence counts only for a leader that saw Postgres (looked_at) half a lease ago or later: one that was frozen meanwhile missed an outage.
WITH dead AS (
    UPDATE workers SET died_at = clock_timestamp(), died_why = %(why)s
    WHERE incarnation = %(worker)s AND died_at IS NULL
      AND (%(term)s::bigint IS NULL OR EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s))
      AND (NOT %(only_if_silent)s OR (
            seen_at < clock_timestamp() - make_interval(secs => %(silent_s)s)
            AND clock_timestamp() < %(looked_at)s::timestamptz + make_interval(secs => %(silent_s)s / 2)))
    RETURNING queues, died_at
), rung AS (
    UPDATE runs SET wake_at = clock_timestamp() FROM (
        SELECT r.tenant_id, r.id FROM runs r, dead
        WHERE r.status = 'running' AND r.claim_id IS NULL AND (r.queue || CASE WHEN r.deaths >= 2 THEN '.quarantine' ELSE '' END) = ANY(dead.queues) AND r.rung_at < dead.died_at
        FOR UPDATE OF r SKIP LOCKED) AS swallowed
    WHERE runs.tenant_id = swallowed.tenant_id AND runs.id = swallowed.id
    RETURNING 1
)
SELECT count(*) AS died FROM dead
