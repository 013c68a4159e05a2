-- The next waiting runs of tenants: per tenant and queue priority (0 first), then age; `rank` orders the tenants.
SELECT * FROM (
    SELECT r.*, s.rank, row_number() OVER (PARTITION BY r.tenant_id, r.queue ORDER BY r.priority, r.queued_at) AS nth, s.queue_room
    FROM jsonb_to_recordset(%(streams)s::jsonb) AS s (tenant_id uuid, rank int, queue text, started boolean, room int, queue_room int)
    CROSS JOIN LATERAL (
        SELECT
            tenant_id, id, session_id, agent_id, agent_name, agent_version, queue, priority, trace_id, prev_run_id, attempt,
            fence, claim_id, claimed_by, committed_by, last_input_n, rings, status, version, step, next_kind, turn, failures,
            limited, deaths, messages, memo, started, cancel_requested, not_before, stop_reason, error, output, input_tokens,
            output_tokens, cost_usd, limits, retry, pause_requested, waiting, turn_at, concurrency_key, overrides, parent_run_id,
            depth, reserved_tokens, reserved_usd, reserved_day, queued_at
        FROM runs WHERE tenant_id = s.tenant_id AND queue = s.queue AND started = s.started AND status = 'queued' AND held_for IS NULL
          AND NOT (id = ANY(%(skipped)s::uuid[]))
        ORDER BY priority, queued_at LIMIT s.room FOR UPDATE SKIP LOCKED) AS r
) AS found WHERE nth <= queue_room
ORDER BY rank, priority, queued_at
