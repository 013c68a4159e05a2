-- Read a run as it is now.
SELECT
    tenant_id, id, session_id, agent_id, agent_name, agent_version, queue, priority, trace_id, prev_run_id, attempt,
    fence, claim_id, claimed_by, committed_by, last_input_n, rings, status, version, step, next_kind, turn, failures,
    limited, deaths, messages, memo, started, cancel_requested, not_before, stop_reason, error, output, input_tokens,
    output_tokens, cost_usd, limits, retry, pause_requested, waiting, turn_at, concurrency_key, overrides, parent_run_id,
    depth, reserved_tokens, reserved_usd, reserved_day,
    clock_timestamp() AS now
FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s
