-- Declare a worker process dead, and let every unanswered doorbell of its queues be rung again.
-- By the leader of this term, or without a term by the supervisor that saw its own child die.
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
    UPDATE runs SET wake_at = clock_timestamp() FROM dead
    WHERE runs.status = 'running' AND runs.claim_id IS NULL AND runs.queue = ANY(dead.queues) AND runs.rung_at < dead.died_at
    RETURNING 1
)
SELECT count(*) AS died FROM dead
