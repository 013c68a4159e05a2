-- Write transitions of one or more runs: run CAS, checkpoint, events, messages, ledger rows and slots, in one round trip and one fsync.
-- Compared: version, fence, claim_id, last_input_n and cancel_requested as the writer saw them. No row back for a run: nothing of it was written.
WITH t AS (
    SELECT * FROM jsonb_to_recordset(%(writes)s::jsonb) AS t (
        tenant_id uuid, run_id uuid,
        seen_version int, seen_fence int, seen_claim_id uuid, seen_input_n int, seen_cancel boolean,
        status text, version int, step int, next_kind text, turn int, failures int, limited int, deaths int, message_count int,
        memo jsonb, started boolean, cancel_requested boolean, not_before timestamptz, stop_reason text, error jsonb,
        output text, input_tokens bigint, output_tokens bigint, cost_usd double precision,
        pause_requested boolean, waiting jsonb, turn_at timestamptz, seen_turn_at timestamptz,
        spent_tokens bigint, spent_usd double precision, freed_tokens bigint, freed_usd double precision, day date,
        next_claim_id uuid, new_claim boolean, worker uuid, committed_by uuid, attempt int, wake_at timestamptz, rings int, untouched boolean,
        terminal boolean, slot_delta int, input_delta int, event_count int,
        checkpoint jsonb, snapshot text, events jsonb, messages jsonb, proposed jsonb, outcomes jsonb, asked jsonb, expired boolean, session_summary text)
), run AS (
    -- What was written, with all that goes with it: what follows reads it here, and joins nothing.
    UPDATE runs SET
        status = t.status, version = t.version, step = t.step, next_kind = t.next_kind, turn = t.turn,
        failures = t.failures, limited = t.limited, deaths = t.deaths, messages = t.message_count, memo = t.memo, started = t.started,
        cancel_requested = t.cancel_requested, not_before = t.not_before, stop_reason = t.stop_reason,
        error = t.error, output = t.output, input_tokens = t.input_tokens, output_tokens = t.output_tokens,
        cost_usd = t.cost_usd,
        pause_requested = t.pause_requested, waiting = t.waiting, turn_at = t.turn_at,
        reserved_tokens = CASE WHEN t.next_claim_id IS NOT NULL AND NOT t.new_claim THEN reserved_tokens ELSE 0 END,
        reserved_usd = CASE WHEN t.next_claim_id IS NOT NULL AND NOT t.new_claim THEN reserved_usd ELSE 0 END,
        reserved_day = CASE WHEN t.next_claim_id IS NOT NULL AND NOT t.new_claim THEN reserved_day END,
        held_for = CASE WHEN t.status <> 'queued' THEN NULL
                        WHEN runs.status = 'queued' THEN held_for
                        WHEN NOT t.started AND EXISTS (SELECT 1 FROM runs p WHERE p.tenant_id = runs.tenant_id
                             AND p.id = runs.prev_run_id AND p.session_id = runs.session_id AND (p.finished_at IS NULL OR NOT p.started)) THEN 'session'
                        WHEN concurrency_key IS NOT NULL THEN 'key' END,
        fence = fence + t.new_claim::int,
        claim_id = t.next_claim_id,
        claimed_by = CASE WHEN t.new_claim THEN t.worker WHEN t.next_claim_id IS NOT NULL THEN claimed_by END,
        claimed_at = CASE WHEN t.new_claim THEN clock_timestamp() WHEN t.next_claim_id IS NOT NULL THEN claimed_at END,
        committed_by = coalesce(t.committed_by, runs.committed_by),
        attempt = t.attempt,
        wake_at = CASE WHEN t.untouched THEN runs.wake_at ELSE t.wake_at END,
        rings = CASE WHEN t.untouched THEN runs.rings ELSE t.rings END,
        rung_at = CASE WHEN NOT t.untouched AND t.rings > 0 AND t.next_claim_id IS NULL THEN clock_timestamp() ELSE rung_at END,
        last_input_n = last_input_n + t.input_delta,
        next_seq = next_seq + t.event_count,
        queued_at = CASE WHEN t.status = 'queued' AND runs.status <> 'queued' THEN clock_timestamp() ELSE queued_at END,
        started_at = CASE WHEN t.started THEN coalesce(started_at, clock_timestamp()) END,
        finished_at = CASE WHEN t.terminal THEN clock_timestamp() END,
        updated_at = clock_timestamp()
    FROM t
    WHERE runs.tenant_id = t.tenant_id AND runs.id = t.run_id
      AND runs.version = t.seen_version
      AND runs.fence = t.seen_fence
      AND runs.claim_id IS NOT DISTINCT FROM t.seen_claim_id
      AND runs.last_input_n = t.seen_input_n
      AND runs.cancel_requested = t.seen_cancel
    RETURNING t.*, runs.next_seq - t.event_count AS first_seq, runs.fence, runs.last_input_n, runs.parent_run_id, runs.session_id
), parent AS (
    -- The end of a child wakes its parent. One that does not wait yet looks for itself when it begins to.
    UPDATE runs SET wake_at = clock_timestamp() FROM run AS t
    WHERE t.terminal AND runs.tenant_id = t.tenant_id AND runs.id = t.parent_run_id AND runs.status = 'waiting_children'
), talk AS (
    -- What a session remembers. Locked in the order of their ids, so that two batches never wait for each other.
    SELECT s.tenant_id, s.id, t.session_summary FROM run AS t
    JOIN sessions s ON s.tenant_id = t.tenant_id AND s.id = t.session_id
    WHERE t.session_summary IS NOT NULL ORDER BY s.id FOR UPDATE OF s
), remembered AS (
    UPDATE sessions SET memory_summary = talk.session_summary FROM talk WHERE sessions.tenant_id = talk.tenant_id AND sessions.id = talk.id
), checkpoint AS (
    INSERT INTO checkpoints (tenant_id, run_id, step, version, kind, delta, snapshot, claim_id, worker, fence, attempt, started_at)
    SELECT t.tenant_id, t.run_id, t.step, t.version, t.checkpoint->>'kind', t.checkpoint->'delta', decode(t.snapshot, 'base64'),
           t.seen_claim_id, t.worker, t.seen_fence, (t.checkpoint->>'attempt')::int, (t.checkpoint->>'started_at')::timestamptz
    FROM run AS t WHERE t.checkpoint IS NOT NULL
), event AS (
    INSERT INTO events (tenant_id, run_id, seq, type, step, payload, at)
    SELECT t.tenant_id, t.run_id, t.first_seq + e.n - 1, e.v->>'type', (e.v->>'step')::int, e.v->'payload',
           coalesce((e.v->>'at')::timestamptz, clock_timestamp())
    FROM run AS t, jsonb_array_elements(t.events) WITH ORDINALITY AS e (v, n)
), message AS (
    INSERT INTO messages (tenant_id, run_id, n, step, role, trust, body)
    SELECT t.tenant_id, t.run_id, m.n, t.step, m.role, m.trust, m.body::json
    FROM run AS t, jsonb_to_recordset(t.messages) AS m (n int, role text, trust text, body text)
), proposal AS (
    INSERT INTO tool_calls (tenant_id, run_id, step, idx, tool_use_id, name, arguments, status)
    SELECT t.tenant_id, t.run_id, p.step, p.idx, p.tool_use_id, p.name, p.arguments::json, CASE WHEN t.terminal THEN 'cancelled' ELSE 'proposed' END
    FROM run AS t, jsonb_to_recordset(t.proposed) AS p (step int, idx int, tool_use_id text, name text, arguments text)
    WHERE t.proposed <> '[]'
), outcome AS (
    UPDATE tool_calls SET
        status = CASE WHEN NOT t.terminal OR o.status NOT IN ('running', 'awaiting_approval') THEN o.status
                      WHEN tool_calls.effect = 'write' AND o.status = 'running' AND (tool_calls.kept IS NULL OR o.answer IS NOT NULL OR tool_calls.answer IS NOT NULL OR o.resume_at IS NULL) THEN 'unknown' ELSE 'cancelled' END, result = o.result, error_type = o.error_type, trust = o.trust, artifacts = o.artifacts,
        duration_ms = o.duration_ms, cost_usd = o.cost_usd, attempt = o.attempt, effect = coalesce(tool_calls.effect, o.effect),
        tool_version = coalesce(o.tool_version, tool_calls.tool_version),
        started_at = CASE WHEN o.status = 'awaiting_approval' THEN tool_calls.started_at
                          ELSE coalesce(tool_calls.started_at, clock_timestamp() - make_interval(secs => o.duration_ms / 1000)) END,
        answer = coalesce(o.answer, tool_calls.answer), resume_at = o.resume_at, input_tokens = o.input_tokens, output_tokens = o.output_tokens,
        fingerprint = coalesce(o.fingerprint, tool_calls.fingerprint), ran_arguments = coalesce(o.ran_arguments::json, tool_calls.ran_arguments),
        failed_attempts = o.failed_attempts, duplicate_of = o.duplicate_of, cached_from = o.cached_from,
        cached_until = o.cached_until, served_by = coalesce(o.served_by, tool_calls.served_by), policy = coalesce(o.policy, tool_calls.policy),
        finished_at = CASE WHEN t.terminal OR o.status NOT IN ('running', 'awaiting_approval') THEN clock_timestamp() END
    FROM run AS t, jsonb_to_recordset(t.outcomes) AS o (
        step int, idx int, status text, result text, error_type text, trust text, artifacts text[],
        duration_ms double precision, cost_usd double precision, attempt int, effect text, tool_version text, resume_at timestamptz,
        input_tokens bigint, output_tokens bigint, fingerprint text, ran_arguments text, failed_attempts jsonb, duplicate_of text,
        cached_from text, cached_until timestamptz, served_by text, policy jsonb, answer text)
    WHERE t.outcomes <> '[]' AND tool_calls.tenant_id = t.tenant_id AND tool_calls.run_id = t.run_id
      AND tool_calls.step = o.step AND tool_calls.idx = o.idx
      AND (tool_calls.status IN ('proposed', 'validating', 'awaiting_approval')
           OR (tool_calls.status = 'running' AND (tool_calls.resume_at IS NOT NULL OR tool_calls.attempt_id IS NULL)))
), open_call AS (
    -- A run that ends leaves no call open: an effect that was begun is unknown, also one that waits; the rest is cancelled.
    -- A write that only asked a person (`kept`, no answer yet) has done nothing: it is cancelled too.
    UPDATE tool_calls SET
        status = CASE WHEN tool_calls.status = 'running' AND effect = 'write' AND (kept IS NULL OR answer IS NOT NULL OR resume_at IS NULL) THEN 'unknown' ELSE 'cancelled' END,
        evidence = CASE WHEN tool_calls.status = 'running' AND effect = 'write' AND (kept IS NULL OR answer IS NOT NULL OR resume_at IS NULL)
            THEN jsonb_build_object('why', 'the run ended (' || t.stop_reason || ') while it was under way', 'attempt_id', attempt_id, 'started_at', started_at) END,
        finished_at = clock_timestamp()
    FROM run AS t
    WHERE t.terminal AND t.next_kind NOT IN ('model', 'compact') AND tool_calls.tenant_id = t.tenant_id AND tool_calls.run_id = t.run_id
      AND tool_calls.step = t.step + 1 AND tool_calls.status IN ('proposed', 'validating', 'awaiting_approval', 'running')
      AND NOT EXISTS (SELECT 1 FROM jsonb_to_recordset(t.outcomes) AS o (idx int, step int) WHERE o.idx = tool_calls.idx AND o.step = tool_calls.step)
), void AS (
    -- A call that is asked about anew: what was asked or decided before holds no more.
    UPDATE approvals SET status = 'void' FROM run AS t, jsonb_to_recordset(t.asked) AS a (step int, idx int)
    WHERE NOT t.terminal AND t.asked <> '[]' AND approvals.tenant_id = t.tenant_id AND approvals.run_id = t.run_id AND approvals.step = a.step
      AND approvals.idx = a.idx AND approvals.status IN ('pending', 'approved')
    RETURNING 1
), asked AS (
    INSERT INTO approvals (tenant_id, id, run_id, step, idx, status, digest, tool, tool_version, policy_version, effect, arguments, input_schema,
        original_arguments, original_digest, edited_by, shown, approver_roles, four_eyes, started_by, expires_at)
    SELECT t.tenant_id, a.id, t.run_id, a.step, a.idx, 'pending', a.digest, a.tool, a.tool_version, a.policy_version, a.effect, a.arguments::json,
        a.input_schema::json, a.original_arguments::json, a.original_digest, a.edited_by, a.shown, a.approver_roles, a.four_eyes, a.started_by, a.expires_at
    FROM run AS t, jsonb_to_recordset(t.asked) AS a (
        id uuid, step int, idx int, digest text, tool text, tool_version text, policy_version text, effect text, arguments text, input_schema text,
        original_arguments text, original_digest text, edited_by text, shown jsonb, approver_roles text[], four_eyes boolean, started_by text,
        expires_at timestamptz)
    WHERE NOT t.terminal AND t.asked <> '[]' AND (SELECT count(*) FROM void) >= 0
), expired AS (
    UPDATE approvals SET status = 'expired', decided_at = clock_timestamp() FROM run AS t,
        jsonb_to_recordset(t.outcomes) AS o (step int, idx int, error_type text)
    WHERE t.expired AND o.error_type = 'APPROVAL_EXPIRED' AND approvals.tenant_id = t.tenant_id AND approvals.run_id = t.run_id
      AND approvals.step = o.step AND approvals.idx = o.idx AND approvals.status = 'pending'
), closed AS (
    -- A run that ends, and a step that is over, leave no approval open.
    UPDATE approvals SET status = CASE WHEN t.terminal THEN 'cancelled' ELSE 'void' END FROM run AS t
    WHERE (t.checkpoint->>'kind' NOT IN ('model', 'compact') OR t.terminal) AND NOT t.expired AND approvals.tenant_id = t.tenant_id
      AND approvals.run_id = t.run_id AND approvals.status IN ('pending', 'approved')
), slot AS (
    -- Locked in the order of their ids, so that two batches never wait for each other.
    SELECT s.tenant_id, d.delta, d.used_s, d.turns FROM tenant_slots s JOIN (
        SELECT t.tenant_id, sum(t.slot_delta)::int AS delta,
               sum(CASE WHEN t.slot_delta < 0 THEN greatest(0, extract(epoch FROM clock_timestamp() - t.seen_turn_at)) ELSE 0 END) AS used_s,
               sum(coalesce(extract(epoch FROM CASE WHEN t.slot_delta > 0 THEN t.turn_at ELSE t.seen_turn_at END), 0) * t.slot_delta) AS turns
        FROM run AS t
        WHERE t.slot_delta <> 0 GROUP BY t.tenant_id) AS d ON d.tenant_id = s.tenant_id
    ORDER BY s.tenant_id FOR UPDATE OF s
), slots AS (
    UPDATE tenant_slots SET running = running + slot.delta, used_s = tenant_slots.used_s + slot.used_s,
        last_admitted_at = CASE WHEN slot.delta > 0 THEN clock_timestamp() ELSE last_admitted_at END,
        turn_sum = CASE WHEN running + slot.delta = 0 THEN 0 ELSE turn_sum + slot.turns END FROM slot WHERE tenant_slots.tenant_id = slot.tenant_id
), spent AS (
    -- Daily limits: what was reserved for a step is exchanged for what it cost; the nil tenant is the platform.
    SELECT who.tenant_id, t.day, sum(t.spent_tokens) AS tokens, sum(t.spent_usd) AS usd, sum(t.freed_tokens) AS freed_tokens,
           sum(t.freed_usd) AS freed_usd
    FROM run AS t, LATERAL (VALUES (t.tenant_id), ('00000000-0000-0000-0000-000000000000'::uuid)) AS who (tenant_id)
    WHERE t.day IS NOT NULL GROUP BY who.tenant_id, t.day
), day AS (
    SELECT d.tenant_id, d.day, spent.tokens, spent.usd, spent.freed_tokens, spent.freed_usd
    FROM tenant_days d JOIN spent ON d.tenant_id = spent.tenant_id AND d.day = spent.day
    ORDER BY d.day, d.tenant_id FOR UPDATE OF d
), days AS (
    UPDATE tenant_days d SET tokens = d.tokens + day.tokens, cost_usd = d.cost_usd + day.usd,
        reserved_tokens = d.reserved_tokens - day.freed_tokens, reserved_usd = d.reserved_usd - day.freed_usd
    FROM day WHERE d.tenant_id = day.tenant_id AND d.day = day.day
)
SELECT run.run_id, run.first_seq, run.fence, run.last_input_n, clock_timestamp() AS now,
       set_config('synchronous_commit', 'on', true)
FROM run
