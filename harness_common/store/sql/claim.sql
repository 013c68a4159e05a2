-- Take ownership of runs that are ready (a new fence, a random claim id) and read what their next step needs: messages after those
-- already known, and the ledger of a tools step. Asynchronous commit: a lost claim is safe, since claim ids are random.
WITH want AS (
    SELECT * FROM jsonb_to_recordset(%(wants)s::jsonb) AS w (tenant_id uuid, run_id uuid, version int, claim_id uuid, have int)
), claimed AS (
    UPDATE runs SET
        fence = fence + 1, claim_id = want.claim_id, claimed_by = %(worker)s, claimed_at = clock_timestamp(),
        attempt = attempt + 1, wake_at = clock_timestamp() + make_interval(secs => %(hold_s)s)
    FROM want
    WHERE runs.tenant_id = want.tenant_id AND runs.id = want.run_id AND runs.version = want.version
      AND runs.status = 'running' AND runs.claim_id IS NULL
    RETURNING runs.tenant_id, runs.id, runs.session_id, runs.agent_id, runs.agent_name, runs.agent_version, runs.queue, runs.priority, runs.trace_id, runs.prev_run_id, runs.attempt, runs.fence,
        runs.claim_id, runs.claimed_by, runs.committed_by, runs.last_input_n, runs.rings, runs.status, runs.version, runs.step, runs.next_kind, runs.turn, runs.failures, runs.limited, runs.deaths,
        runs.messages, runs.memo, runs.started, runs.cancel_requested, runs.not_before, runs.input_tokens, runs.output_tokens, runs.cost_usd, runs.limits, runs.retry, runs.rung_at, want.have
)
SELECT c.*, clock_timestamp() AS now,
    (SELECT array_agg(m.body::text ORDER BY m.n) FROM messages m
     WHERE m.tenant_id = c.tenant_id AND m.run_id = c.id AND m.n > c.have AND m.n <= c.messages) AS new_messages,
    CASE WHEN c.next_kind = 'tools' THEN
        (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.idx) FROM tool_calls t
         WHERE t.tenant_id = c.tenant_id AND t.run_id = c.id AND t.step = c.step + 1) END AS calls,
    set_config('synchronous_commit', 'off', true)
FROM claimed c
