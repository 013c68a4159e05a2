-- Take ownership of runs that are ready (a new fence, a random claim id) and read what their next step needs: messages after those
-- already known, the ledger of a step with calls, and what its tenant's limits say: the step is charged to the rates that exist, and waits
-- `wait_s`, or it is put off and tries again then. Asynchronous commit: a lost claim is safe, since claim ids are random.
WITH want AS (
    -- `count` is how many there are: a limit that the planner does not know it takes for a few rows, and looks each of them up.
    SELECT * FROM jsonb_to_recordset(%(wants)s::jsonb) AS w (tenant_id uuid, run_id uuid, version int, claim_id uuid, have int)
    LIMIT %(count)s
), claimed AS (
    UPDATE runs SET
        fence = fence + 1, claim_id = want.claim_id, claimed_by = %(worker)s, claimed_at = clock_timestamp(),
        attempt = attempt + 1, wake_at = clock_timestamp() + make_interval(secs => %(hold_s)s)
    FROM want
    WHERE runs.tenant_id = want.tenant_id AND runs.id = want.run_id AND runs.version = want.version
      -- So written, the index of all that run is no way to one of them.
      AND coalesce(runs.status, '') = 'running' AND runs.claim_id IS NULL
      -- An older doorbell of a suspect may still lie in the ordinary queue: only a process that holds one run takes it.
      AND (runs.deaths < 2 OR EXISTS (SELECT 1 FROM workers w WHERE w.incarnation = %(worker)s::uuid AND w.concurrency = 1))
    RETURNING runs.tenant_id, runs.id, runs.session_id, runs.agent_id, runs.agent_name, runs.agent_version, runs.queue, runs.priority, runs.trace_id, runs.prev_run_id, runs.attempt, runs.fence,
        runs.claim_id, runs.claimed_by, runs.committed_by, runs.last_input_n, runs.rings, runs.status, runs.version, runs.step, runs.next_kind, runs.turn, runs.failures, runs.limited, runs.deaths,
        runs.messages, runs.memo, runs.started, runs.cancel_requested, runs.not_before, runs.input_tokens, runs.output_tokens, runs.cost_usd, runs.limits, runs.retry, runs.rung_at, want.have,
        runs.pause_requested, runs.waiting, runs.turn_at, runs.concurrency_key, runs.overrides, runs.parent_run_id, runs.depth,
        runs.reserved_tokens, runs.reserved_usd, runs.reserved_day
), owing AS (
    SELECT tenant_id, id, row_number() OVER (PARTITION BY tenant_id) - 1 AS nth, row_number() OVER () - 1 AS nth_of_all FROM claimed
), rated AS (
    -- A tenant with a rate: `lead_s` until its next step may start, how many of these start (a wait of up to 0.25 s is worth it), and
    -- until when places are given to others that wait. Places are no promises: who comes to one is charged like anybody.
    SELECT r.*, greatest(0, least(r.n, floor((0.25 - r.lead_s) * r.rate + 1)))::int AS starts FROM (
        SELECT s.tenant_id, s.steps_per_s AS rate, d.n, greatest(0, extract(epoch FROM s.steps_tat - clock_timestamp())) AS lead_s,
               greatest(0, extract(epoch FROM s.places_tat - clock_timestamp())) AS places_s
        FROM tenant_slots s JOIN (SELECT tenant_id, count(*) AS n FROM owing GROUP BY tenant_id) AS d ON d.tenant_id = s.tenant_id
        WHERE s.steps_per_s IS NOT NULL ORDER BY s.tenant_id FOR UPDATE OF s) AS r
), tenant_rate AS (
    UPDATE tenant_slots s SET steps_tat = clock_timestamp() + make_interval(secs => r.lead_s + r.starts / r.rate),
        places_tat = clock_timestamp() + make_interval(secs => least(60, greatest(r.places_s, r.lead_s + r.starts / r.rate) + (r.n - r.starts) / r.rate))
    FROM rated r WHERE s.tenant_id = r.tenant_id
), platform_rated AS (
    SELECT r.*, greatest(0, least(r.n, floor((0.25 - r.lead_s) * r.rate + 1)))::int AS starts FROM (
        SELECT p.steps_per_s AS rate, d.n, greatest(0, extract(epoch FROM p.steps_tat - clock_timestamp())) AS lead_s,
               greatest(0, extract(epoch FROM p.places_tat - clock_timestamp())) AS places_s
        FROM platform p, (SELECT count(*) AS n FROM owing HAVING count(*) > 0) AS d
        WHERE p.name = 'global' AND p.steps_per_s IS NOT NULL FOR UPDATE OF p) AS r
), platform_rate AS (
    UPDATE platform SET steps_tat = clock_timestamp() + make_interval(secs => r.lead_s + r.starts / r.rate),
        places_tat = clock_timestamp() + make_interval(secs => least(60, greatest(r.places_s, r.lead_s + r.starts / r.rate) + (r.n - r.starts) / r.rate))
    FROM platform_rated r WHERE name = 'global'
)
SELECT c.*, clock_timestamp() AS now, coalesce(s.crowded, false) AS crowded,
    coalesce(s.steps_per_s, p.steps_per_s) IS NOT NULL AS rated,
    coalesce(s.tokens_per_day, p.tokens_per_day) IS NOT NULL OR coalesce(s.cost_usd_per_day, p.cost_usd_per_day) IS NOT NULL AS budgeted,
    greatest(0,
        CASE WHEN tr.rate IS NULL THEN 0 WHEN o.nth < tr.starts THEN tr.lead_s + o.nth / tr.rate
             ELSE least(60, greatest(tr.places_s, tr.lead_s + tr.starts / tr.rate) + (o.nth - tr.starts) / tr.rate) END,
        CASE WHEN pr.rate IS NULL THEN 0 WHEN o.nth_of_all < pr.starts THEN pr.lead_s + o.nth_of_all / pr.rate
             ELSE least(60, greatest(pr.places_s, pr.lead_s + pr.starts / pr.rate) + (o.nth_of_all - pr.starts) / pr.rate) END)::float8 AS wait_s,
    coalesce(o.nth >= tr.starts, false) OR coalesce(o.nth_of_all >= pr.starts, false) AS put_off,
    (SELECT array_agg(m.body::text ORDER BY m.n) FROM messages m
     -- What a compaction has left out is not loaded: its memo says from where on messages are shown (core/context_view.py).
     WHERE m.tenant_id = c.tenant_id AND m.run_id = c.id AND m.n > c.have AND m.n <= c.messages
       AND m.n >= coalesce((c.memo->'context'->>'from')::int, 1)) AS new_messages,
    CASE WHEN c.next_kind NOT IN ('model', 'compact') THEN
        (SELECT jsonb_agg(to_jsonb(t) ORDER BY t.idx) FROM tool_calls t
         WHERE t.tenant_id = c.tenant_id AND t.run_id = c.id AND t.step = c.step + 1) END AS calls,
    set_config('synchronous_commit', 'off', true)
FROM claimed c
LEFT JOIN tenant_slots s ON s.tenant_id = c.tenant_id
LEFT JOIN platform p ON p.name = 'global'
LEFT JOIN owing o ON o.tenant_id = c.tenant_id AND o.id = c.id
LEFT JOIN rated tr ON tr.tenant_id = c.tenant_id
LEFT JOIN platform_rated pr ON true
