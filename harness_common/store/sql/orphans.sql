-- Runs whose owner is dead or was never known, held until the transaction ends; the next batch after those that cannot be moved.
-- `solo`: it could hold this run only, was not told to stop, and claimed nothing else (a claim whose reply got lost is worked on by
-- nobody: which of two runs did it cannot be said). `late`: claimed after the process had been taken for dead, so that this is no
-- second death.
SELECT
    r.tenant_id, r.id, r.session_id, r.agent_id, r.agent_name, r.agent_version, r.queue, r.priority, r.trace_id, r.prev_run_id, r.attempt,
    r.fence, r.claim_id, r.claimed_by, r.committed_by, r.last_input_n, r.rings, r.status, r.version, r.step, r.next_kind, r.turn, r.failures,
    r.limited, r.deaths, r.messages, r.memo, r.started, r.cancel_requested, r.not_before, r.stop_reason, r.error, r.output, r.input_tokens,
    r.output_tokens, r.cost_usd, r.limits, r.retry, r.pause_requested, r.waiting, r.turn_at, r.concurrency_key, r.overrides, r.parent_run_id,
    r.depth, r.reserved_tokens, r.reserved_usd, r.reserved_day,
    r.claimed_at, w.name AS worker_name, w.died_why, coalesce(r.claimed_at > w.died_at, false) AS late, clock_timestamp() AS now,
    w.concurrency = 1 AND w.stopping_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM runs o WHERE o.claimed_by = r.claimed_by AND o.claim_id IS NOT NULL AND o.claim_id <> r.claim_id) AS solo
FROM runs r LEFT JOIN workers w ON w.incarnation = r.claimed_by
WHERE r.claim_id IS NOT NULL AND (w.incarnation IS NULL OR w.died_at IS NOT NULL) AND NOT (r.id = ANY(%(skipped)s::uuid[]))
LIMIT %(batch)s FOR UPDATE OF r SKIP LOCKED
