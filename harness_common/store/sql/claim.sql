-- Take ownership of runs that are ready (a new fence, a random claim id) and read what their next step needs: messages after those
-- already known, the ledger of a tools step, and what its tenant's limits say: the step is charged to the rates that exist (GCRA:
-- `wait_s` is its place), unless its place was charged before (`memo.paid_step`). Asynchronous commit: a lost claim is safe, since claim ids are random.
WITH want AS (
    SELECT * FROM jsonb_to_recordset(%(wants)s::jsonb) AS w (tenant_id uuid, run_id uuid, version int, claim_id uuid, have int)
), claimed AS (
    UPDATE runs SET
        fence = fence + 1, claim_id = want.claim_id, claimed_by = %(worker)s, claimed_at = clock_timestamp(),
        attempt = attempt + 1, wake_at = clock_timestamp() + make_interval(secs => %(hold_s)s)
    FROM want
    WHERE runs.tenant_id = want.tenant_id AND runs.id = want.run_id AND runs.version = want.version
      AND runs.status = 'running' AND runs.claim_id IS NULL
      -- An older doorbell of a suspect may still lie in the ordinary queue: only a process that holds one run takes it.
      AND (runs.deaths < 2 OR EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = %(worker)s::uuid AND w.concurrency = 1))
    RETURNING runs.tenant_id, runs.id, runs.session_id, runs.agent_id, runs.agent_name, runs.agent_version, runs.queue, runs.priority, runs.trace_id, runs.prev_run_id, runs.attempt, runs.fence,
        runs.claim_id, runs.claimed_by, runs.committed_by, runs.last_input_n, runs.rings, runs.status, runs.version, runs.step, runs.next_kind, runs.turn, runs.failures, runs.limited, runs.deaths,
        runs.messages, runs.memo, runs.started, runs.cancel_requested, runs.not_before, runs.input_tokens, runs.output_tokens, runs.cost_usd, runs.limits, runs.retry, runs.rung_at, want.have,
        runs.pause_requested, runs.waiting, runs.turn_at, runs.concurrency_key, runs.overrides, runs.parent_run_id, runs.depth,
        runs.reserved_tokens, runs.reserved_usd, runs.reserved_day
), owing AS (
    SELECT tenant_id, id, row_number() OVER (PARTITION BY tenant_id) - 1 AS nth, row_number() OVER () - 1 AS nth_of_all FROM claimed
    WHERE (memo->>'paid_step')::int IS DISTINCT FROM step + 1
), rated AS (
    SELECT s.tenant_id, d.n FROM tenant_slots s JOIN (SELECT tenant_id, count(*) AS n FROM owing GROUP BY tenant_id) AS d
        ON d.tenant_id = s.tenant_id
    WHERE s.steps_per_s IS NOT NULL ORDER BY s.tenant_id FOR UPDATE OF s
), tenant_rate AS (
    UPDATE tenant_slots s SET steps_tat = greatest(s.steps_tat, clock_timestamp()) + make_interval(secs => rated.n / s.steps_per_s)
    FROM rated WHERE s.tenant_id = rated.tenant_id
    RETURNING s.tenant_id, s.steps_per_s, s.steps_tat - make_interval(secs => rated.n / s.steps_per_s) AS free_at
), platform_rate AS (
    UPDATE platform SET steps_tat = greatest(steps_tat, clock_timestamp()) + make_interval(secs => d.n / steps_per_s)
    FROM (SELECT count(*) AS n FROM owing HAVING count(*) > 0) AS d WHERE name = 'global' AND steps_per_s IS NOT NULL
    RETURNING steps_per_s, steps_tat - make_interval(secs => d.n / steps_per_s) AS free_at
)
SELECT c.*, clock_timestamp() AS now, coalesce(s.crowded, false) OR coalesce(p.crowded, false) AS crowded,
    coalesce(s.steps_per_s, p.steps_per_s) IS NOT NULL AS rated,
    coalesce(s.tokens_per_day, p.tokens_per_day) IS NOT NULL OR coalesce(s.cost_usd_per_day, p.cost_usd_per_day) IS NOT NULL AS budgeted,
    greatest(0, extract(epoch FROM tr.free_at - clock_timestamp()) + o.nth / tr.steps_per_s,
        extract(epoch FROM pr.free_at - clock_timestamp()) + o.nth_of_all / pr.steps_per_s)::float8 AS wait_s,
    (SELECT array_agg(m.body::text ORDER BY m.n) FROM messages m
     WHERE m.tenant_id = c.tenant_id AND m.run_id = c.id AND m.n > c.have AND m.n <= c.messages) AS new_messages,
    CASE WHEN c.next_kind = 'tools' THEN
        (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.idx) FROM tool_calls t
         WHERE t.tenant_id = c.tenant_id AND t.run_id = c.id AND t.step = c.step + 1) END AS calls,
    set_config('synchronous_commit', 'off', true)
FROM claimed c
LEFT JOIN tenant_slots s ON s.tenant_id = c.tenant_id
LEFT JOIN platform p ON p.name = 'global'
LEFT JOIN owing o ON o.tenant_id = c.tenant_id AND o.id = c.id
LEFT JOIN tenant_rate tr ON tr.tenant_id = c.tenant_id AND o.id IS NOT NULL
LEFT JOIN platform_rate pr ON o.id IS NOT NULL
