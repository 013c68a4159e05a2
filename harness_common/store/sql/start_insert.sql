-- Write new runs with their sessions, first messages, copied ledger and events; inline admission takes the slots.
WITH t AS (
    SELECT * FROM jsonb_to_recordset(%(runs)s::jsonb) AS t (
        tenant_id uuid, run_id uuid, session_id uuid, new_session boolean, agent_id uuid, agent_name text, agent_version int,
        status text, version int, step int, next_kind text, turn int, message_count int, memo jsonb, started boolean,
        input_tokens bigint, output_tokens bigint, cost_usd double precision, limits jsonb, retry jsonb,
        queue text, priority smallint, wake_at timestamptz, rings int, input text, tags jsonb, created_by text, trace_id text,
        overrides jsonb, held_for text, concurrency_key text, concurrency_max int, parent_run_id uuid, parent_step int, parent_idx int,
        depth int, turn_at timestamptz, copy_from int, copy_to int,
        prev_run_id uuid, forked_from uuid, forked_step int, snapshot text, title text, user_id text, slot_delta int,
        events jsonb, messages jsonb)
), session AS (
    INSERT INTO sessions (tenant_id, id, title, user_id, head_run_id)
    SELECT tenant_id, session_id, title, user_id, run_id FROM t WHERE new_session
), head AS (
    UPDATE sessions SET head_run_id = t.run_id FROM t
    WHERE NOT t.new_session AND sessions.tenant_id = t.tenant_id AND sessions.id = t.session_id
), run AS (
    INSERT INTO runs (tenant_id, id, session_id, agent_id, agent_name, agent_version, status, version, step, next_kind, turn,
        messages, memo, started, input_tokens, output_tokens, cost_usd, limits, retry, queue, priority, wake_at, rung_at, rings,
        next_seq, input, tags, created_by, trace_id, prev_run_id, forked_from, forked_step, started_at,
        overrides, held_for, concurrency_key, concurrency_max, parent_run_id, parent_step, parent_idx, depth, turn_at)
    SELECT tenant_id, run_id, session_id, agent_id, agent_name, agent_version, status, version, step, next_kind, turn,
        message_count, memo, started, input_tokens, output_tokens, cost_usd, limits, retry, queue, priority, wake_at,
        CASE WHEN rings > 0 THEN clock_timestamp() END, rings,
        jsonb_array_length(events) + 1,
        CASE WHEN forked_from IS NULL OR (input <> '' AND step = 0) THEN input ELSE (SELECT s.input FROM runs s WHERE s.tenant_id = t.tenant_id AND s.id = t.forked_from) END,
        tags, created_by, trace_id, prev_run_id, forked_from, forked_step,
        CASE WHEN started THEN clock_timestamp() END,
        overrides, held_for, concurrency_key,
        CASE WHEN forked_from IS NULL THEN concurrency_max
             ELSE (SELECT s.concurrency_max FROM runs s WHERE s.tenant_id = t.tenant_id AND s.id = t.forked_from) END,
        parent_run_id, parent_step, parent_idx, depth, turn_at
    FROM t
), checkpoint AS (
    INSERT INTO checkpoints (tenant_id, run_id, step, version, kind, delta, snapshot, fence, attempt)
    SELECT tenant_id, run_id, step, 0, 'fork', '{}', decode(snapshot, 'base64'), 0, 0 FROM t WHERE forked_from IS NOT NULL AND step > 0
), message AS (
    INSERT INTO messages (tenant_id, run_id, n, step, role, trust, body)
    SELECT t.tenant_id, t.run_id, m.n, m.step, m.role, m.trust, m.body::json
    FROM t, jsonb_to_recordset(t.messages) AS m (n int, step int, role text, trust text, body text)
), copied AS (
    INSERT INTO messages (tenant_id, run_id, n, step, role, trust, body)
    SELECT t.tenant_id, t.run_id, m.n, m.step, m.role, m.trust, m.body FROM t
    JOIN messages m ON m.tenant_id = t.tenant_id AND m.run_id = t.forked_from AND m.n BETWEEN t.copy_from AND t.copy_to
), ledger AS (
    INSERT INTO tool_calls (tenant_id, run_id, step, idx, tool_use_id, name, tool_version, arguments, fingerprint, effect,
        status, attempt, result, error_type, trust, artifacts, duration_ms, cost_usd, input_tokens, output_tokens, started_at, finished_at,
        ran_arguments, failed_attempts, duplicate_of, cached_from, served_by, policy)
    SELECT t.tenant_id, t.run_id, c.step, c.idx, c.tool_use_id, c.name, c.tool_version, c.arguments, c.fingerprint, c.effect,
        CASE WHEN c.status IN ('succeeded', 'failed', 'rejected', 'unknown') THEN c.status
             WHEN c.status = 'running' AND c.effect = 'write' AND (c.kept IS NULL OR c.answer IS NOT NULL OR c.resume_at IS NULL) THEN 'unknown' ELSE 'proposed' END,
        0, c.result, c.error_type, c.trust, c.artifacts, c.duration_ms, c.cost_usd, c.input_tokens, c.output_tokens, c.started_at, c.finished_at,
        c.ran_arguments, c.failed_attempts, c.duplicate_of, c.cached_from, c.served_by, c.policy
    FROM t CROSS JOIN LATERAL (
        SELECT * FROM tool_calls WHERE tenant_id = t.tenant_id AND run_id = t.forked_from AND step <= t.step + 1 OFFSET 0) AS c
    WHERE NOT t.overrides ? 'recorded' AND NOT (c.name = 'graph__approval' AND c.step > t.step)
), question AS (
    -- What a person said at a step that is done anew was said to the run that it comes from: this one asks for itself.
    INSERT INTO tool_calls (tenant_id, run_id, step, idx, tool_use_id, name, arguments, status, attempt)
    SELECT t.tenant_id, t.run_id, c.step, c.idx, c.tool_use_id, c.name, c.arguments, 'proposed', 0
    FROM t CROSS JOIN LATERAL (
        SELECT * FROM tool_calls WHERE tenant_id = t.tenant_id AND run_id = t.forked_from AND step = t.step + 1 OFFSET 0) AS c
    WHERE c.name = 'graph__approval' AND NOT t.overrides ? 'recorded'
), event AS (
    INSERT INTO events (tenant_id, run_id, seq, type, step, payload)
    SELECT t.tenant_id, t.run_id, e.n, e.v->>'type', (e.v->>'step')::int, e.v->'payload'
    FROM t, jsonb_array_elements(t.events) WITH ORDINALITY AS e (v, n)
), slot AS (
    SELECT tenant_id, sum(slot_delta)::int AS delta, sum(extract(epoch FROM turn_at)) AS turns FROM t WHERE slot_delta <> 0 GROUP BY tenant_id
), slots AS (
    UPDATE tenant_slots SET running = running + slot.delta, last_admitted_at = clock_timestamp(), turn_sum = turn_sum + slot.turns
    FROM slot WHERE tenant_slots.tenant_id = slot.tenant_id
)
SELECT set_config('synchronous_commit', 'on', true)
