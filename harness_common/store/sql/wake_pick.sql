-- Delayed runs of one tenant whose time has come.
SELECT
    tenant_id, id, session_id, agent_id, agent_name, agent_version, queue, priority, trace_id, prev_run_id, attempt,
    fence, claim_id, claimed_by, committed_by, last_input_n, rings, status, version, step, next_kind, turn, failures,
    limited, deaths, messages, memo, started, cancel_requested, not_before, stop_reason, error, output, input_tokens,
    output_tokens, cost_usd, limits, retry, concurrency_key
FROM runs WHERE tenant_id = %(tenant_id)s AND status = 'delayed' AND wake_at <= %(now)s
ORDER BY wake_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
