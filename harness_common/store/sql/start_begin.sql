-- With the tenant's slots held (slots_hold.sql): find the agent and the session, and mint ids from Postgres time.
SELECT uuid7() AS run_id, uuid7() AS new_session_id, clock_timestamp() AS now,
       slot.running, least(slot.max_running, slot.granted) AS may_run,
       a.id AS agent_id, a.name AS agent_name, a.version AS agent_version, a.spec,
       s.id AS session_id, s.closed_at, s.head_run_id, head.status AS head_status,
       EXISTS (SELECT 1 FROM runs q WHERE q.tenant_id = %(tenant_id)s AND q.status = 'queued' AND q.held_for IS NULL) AS others_wait
FROM (SELECT * FROM tenant_slots WHERE tenant_id = %(tenant_id)s) AS slot
LEFT JOIN LATERAL (
    SELECT id, name, version, spec FROM agents
    WHERE tenant_id = %(tenant_id)s AND name = %(agent)s AND version = coalesce(%(agent_version)s, version)
    ORDER BY version DESC LIMIT 1) AS a ON true
LEFT JOIN sessions s ON s.tenant_id = %(tenant_id)s AND s.id = %(session_id)s
LEFT JOIN runs head ON head.tenant_id = %(tenant_id)s AND head.id = s.head_run_id
