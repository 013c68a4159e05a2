-- A batch of seeded runs with all that they have. An id holds its time, as those of the platform do: 48 bits of milliseconds, then the number.
CREATE TEMP TABLE made ON COMMIT DROP AS
SELECT n,
       (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex((n >> 12) & 4095), 3, '0')
        || '8' || lpad(to_hex(n & 4095), 3, '0') || lpad(to_hex(hashint4(n)::bigint & 281474976710655), 12, '0'))::uuid AS id,
       at,
       CASE WHEN old AND p < 0.86 THEN 'succeeded' WHEN old AND p < 0.95 THEN 'failed' WHEN old AND p < 0.985 THEN 'cancelled'
            WHEN p < 0.993 THEN 'waiting_approval' WHEN p < 0.997 THEN 'waiting_input' ELSE 'paused' END AS status,
       8 + (hashint4(n) & 3) * 8 AS events,
       2 + (hashint4(n) & 3) * 2 AS steps
FROM (SELECT n, %(first)s::timestamptz + (%(last)s::timestamptz - %(first)s::timestamptz) * (n::float8 / %(total)s) AS at,
             (hashint4(n + 7) & 65535) / 65536.0 AS p, true AS old
      FROM generate_series(%(from)s::int, %(to)s::int) AS n) AS x;
INSERT INTO sessions (tenant_id, id, title, user_id, created_at)
SELECT %(tenant)s, id, 'Talk ' || n, 'user' || (n %% 997), at FROM made WHERE n %% 3 = 0 OR n = (SELECT min(n) FROM made);
INSERT INTO runs (tenant_id, id, session_id, agent_id, agent_name, agent_version, status, version, step, next_kind, turn, messages, started,
    stop_reason, error, output, input_tokens, output_tokens, cost_usd, queue, next_seq, input, tags, created_by, trace_id,
    created_at, queued_at, started_at, finished_at, updated_at, waiting, forked_from, forked_step,
    limits, retry)
SELECT %(tenant)s, m.id, s.id, a.id, a.name, 1, m.status, m.steps + 1, m.steps, 'model', m.steps / 2, m.steps + 1, true,
    CASE m.status WHEN 'succeeded' THEN 'final_answer' WHEN 'failed' THEN (ARRAY['error', 'token_budget_exceeded', 'max_iterations_exceeded'])[1 + m.n %% 3] WHEN 'cancelled' THEN 'cancelled' END,
    CASE WHEN m.status = 'failed' THEN jsonb_build_object('code', (ARRAY['PROVIDER_DOWN', 'TOOL_FAILED', 'BAD_ARGUMENTS'])[1 + m.n %% 3], 'message', 'It did not work out: ' || m.n) END,
    CASE WHEN m.status = 'succeeded' THEN 'The answer to question ' || m.n || ' is ' || md5(m.n::text) END,
    m.steps * 400, m.steps * 80, m.steps * 0.002, 'steps.default', m.events + 1,
    'Question ' || m.n || ': how many ' || (ARRAY['cars', 'invoices', 'tickets', 'orders', 'letters'])[1 + m.n %% 5] || ' came in, and what does ' || md5(m.n::text) || ' mean?',
    CASE WHEN m.n %% 4 = 0 THEN '{}' ELSE jsonb_build_object('team', 'team' || (m.n %% 23), 'env', (ARRAY['prod', 'test'])[1 + m.n %% 2], 'ticket', 'T-' || m.n) END,
    'key_seed', md5(m.id::text), m.at, m.at, m.at + interval '1 second',
    CASE WHEN m.status IN ('succeeded', 'failed', 'cancelled') THEN m.at + interval '1 second' * (m.steps * 2) END, m.at + interval '1 minute',
    CASE WHEN m.status LIKE 'waiting%%' THEN '{"for": "input", "calls": []}'::jsonb END,
    CASE WHEN m.n %% 50 = 1 THEN lag(m.id) OVER (ORDER BY m.n) END, CASE WHEN m.n %% 50 = 1 THEN 1 END,
    %(limits)s::jsonb, %(retry)s::jsonb
FROM made m
JOIN made s ON s.n = greatest(m.n - m.n %% 3, (SELECT min(n) FROM made))
JOIN agents a ON a.tenant_id = %(tenant)s AND a.name = (%(agents)s::text[])[1 + (m.n %% 8)];
INSERT INTO events (tenant_id, run_id, seq, type, step, payload, at)
SELECT %(tenant)s, m.id, e, CASE WHEN e = 1 THEN 'run.created' WHEN e = 2 THEN 'run.started' WHEN e = m.events AND m.status = 'succeeded' THEN 'run.completed'
         WHEN e = m.events AND m.status IN ('failed', 'cancelled') THEN 'run.' || m.status
         ELSE (ARRAY['step.started', 'model.answered', 'step.completed', 'tool.started'])[1 + e %% 4] END,
       least(m.steps, greatest(1, e / 4)),
       CASE WHEN e %% 4 = 1 AND e > 2 THEN jsonb_build_object('model', 'scripted/demo', 'finish', 'tool_calls', 'input_tokens', 400, 'output_tokens', 80, 'cost_usd', 0.002, 'first_token_ms', 12.5, 'text', repeat(md5(m.n::text), 6))
            ELSE jsonb_build_object('kind', 'model', 'note', md5((m.n + e)::text)) END,
       m.at + interval '1 second' * e
FROM made m, generate_series(1, m.events) AS e;
INSERT INTO checkpoints (tenant_id, run_id, step, version, kind, delta, fence, attempt, started_at, created_at)
SELECT %(tenant)s, m.id, s, s + 1, (ARRAY['tools', 'model'])[1 + s %% 2], jsonb_build_object('turn', (s + 1) / 2, 'messages', s + 1), 1, 1,
       m.at + interval '1 second' * s, m.at + interval '1 second' * (s + 1)
FROM made m, generate_series(1, m.steps) AS s;
INSERT INTO messages (tenant_id, run_id, n, step, role, trust, body, created_at)
SELECT %(tenant)s, m.id, s + 1, s, (ARRAY['user', 'assistant'])[1 + s %% 2], 'trusted',
       json_build_object('role', (ARRAY['user', 'assistant'])[1 + s %% 2], 'content', json_build_array(json_build_object('type', 'text', 'text', 'Message ' || s || ' of ' || m.n || ' ' || repeat(md5(m.n::text), 4)))),
       m.at
FROM made m, generate_series(0, m.steps) AS s;
INSERT INTO tool_calls (tenant_id, run_id, step, idx, tool_use_id, name, arguments, status, attempt, effect, result, duration_ms, created_at, started_at, finished_at)
SELECT %(tenant)s, m.id, s, 0, 'call_0', (ARRAY['look', 'calculate', 'sql_query'])[1 + m.n %% 3], '{"i": 1}', 'succeeded', 1, 'read', md5(m.n::text), 15, m.at, m.at, m.at
FROM made m, generate_series(2, m.steps, 2) AS s;
