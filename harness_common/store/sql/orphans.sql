-- Runs whose owner is dead or was never known, held until the transaction ends; the next batch after those that cannot be moved.
SELECT
    r.tenant_id, r.id, r.session_id, r.agent_id, r.agent_name, r.agent_version, r.queue, r.priority, r.trace_id, r.prev_run_id, r.attempt,
    r.fence, r.claim_id, r.claimed_by, r.committed_by, r.last_input_n, r.rings, r.status, r.version, r.step, r.next_kind, r.turn, r.failures,
    r.limited, r.deaths, r.messages, r.memo, r.started, r.cancel_requested, r.not_before, r.stop_reason, r.error, r.output, r.input_tokens,
    r.output_tokens, r.cost_usd, r.limits, r.retry,
    w.name AS worker_name, w.died_why, clock_timestamp() AS now
FROM runs r LEFT JOIN workers w ON w.incarnation = r.claimed_by
WHERE r.claim_id IS NOT NULL AND (w.incarnation IS NULL OR w.died_at IS NOT NULL) AND NOT (r.id = ANY(%(skipped)s::uuid[]))
LIMIT %(batch)s FOR UPDATE OF r SKIP LOCKED
