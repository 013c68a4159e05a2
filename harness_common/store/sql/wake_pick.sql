-- Runs of one tenant that wait for a time which has come, or whose wall clock is over while nobody works on them (due.sql); for
-- children whether any is still going.
SELECT
    tenant_id, id, session_id, agent_id, agent_name, agent_version, queue, priority, trace_id, prev_run_id, attempt,
    fence, claim_id, claimed_by, committed_by, last_input_n, rings, status, version, step, next_kind, turn, failures,
    limited, deaths, messages, memo, started, cancel_requested, not_before, stop_reason, error, output, input_tokens,
    output_tokens, cost_usd, limits, retry, pause_requested, waiting, turn_at, concurrency_key, overrides, parent_run_id,
    depth, reserved_tokens, reserved_usd, reserved_day,
    NOT EXISTS (SELECT 1 FROM runs c WHERE c.tenant_id = runs.tenant_id AND c.parent_run_id = runs.id
                AND c.parent_step = runs.step + 1 AND c.finished_at IS NULL) AS children_done
FROM runs WHERE tenant_id = %(tenant_id)s AND wake_at <= %(now)s
  AND (status <> 'running' OR (claim_id IS NULL AND (limits->>'deadline')::timestamptz <= %(now)s))
  AND NOT (id = ANY(%(skipped)s::uuid[]))
ORDER BY wake_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
