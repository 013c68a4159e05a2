-- With the tenant's slots held (slots_hold.sql): for each start find the agent and the session, and mint ids from Postgres time.
SELECT uuid7() AS run_id, uuid7() AS new_session_id, clock_timestamp() AS now,
       slot.running, CASE WHEN inline.allowed THEN least(slot.max_running, slot.granted) ELSE 0 END AS may_run,
       a.id AS agent_id, a.name AS agent_name, a.version AS agent_version, a.spec,
       s.id AS session_id, s.closed_at, s.head_run_id, going.id AS going_run_id,
       EXISTS (SELECT 1 FROM runs q WHERE q.tenant_id = %(tenant_id)s AND q.status = 'queued' AND q.held_for IS NULL) AS others_wait
FROM ROWS FROM (jsonb_to_recordset(%(asked)s::jsonb) AS (agent text, agent_version int, session_id uuid)) WITH ORDINALITY AS ask
CROSS JOIN (SELECT * FROM tenant_slots WHERE tenant_id = %(tenant_id)s) AS slot
LEFT JOIN LATERAL (
    SELECT id, name, version, spec FROM agents
    WHERE tenant_id = %(tenant_id)s AND name = ask.agent AND version = coalesce(ask.agent_version, version)
    ORDER BY version DESC LIMIT 1) AS a ON true
LEFT JOIN sessions s ON s.tenant_id = %(tenant_id)s AND s.id = ask.session_id
LEFT JOIN LATERAL (
    -- The newest run of the session that is not over: one that ended before it began may stand behind others.
    WITH RECURSIVE run AS (
        SELECT r.id, r.prev_run_id, r.started, r.finished_at FROM runs r WHERE r.tenant_id = %(tenant_id)s AND r.id = s.head_run_id
        UNION ALL
        SELECT p.id, p.prev_run_id, p.started, p.finished_at
        FROM run CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = run.prev_run_id OFFSET 0) AS p
        WHERE p.session_id = s.id AND run.finished_at IS NOT NULL AND NOT run.started
    )
    SELECT id FROM run WHERE finished_at IS NULL) AS going ON true
-- Not at once: when starts are counted, which the scheduler does, and when no worker serves the queue while others work.
CROSS JOIN LATERAL (
    SELECT slot.starts_per_s IS NULL AND NOT EXISTS (SELECT 1 FROM platform WHERE name = 'global' AND starts_per_s IS NOT NULL)
       AND (NOT EXISTS (SELECT 1 FROM workers WHERE died_at IS NULL AND stopping_at IS NULL)
            OR EXISTS (SELECT 1 FROM workers WHERE died_at IS NULL AND stopping_at IS NULL AND coalesce(a.spec->>'queue', 'steps.default') = ANY(queues)))
       AS allowed) AS inline
ORDER BY ask.ordinality
