-- What policy needs to know of a run beside its calls: which versions apply, who started it and with which role, what its session's
-- earlier runs have touched, and what is left of today's money. Read at the start of each tools step.
WITH RECURSIVE up AS (
    SELECT parent_run_id, created_by, 0 AS n FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s
    UNION ALL
    SELECT r.parent_run_id, r.created_by, up.n + 1
    FROM up CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = up.parent_run_id OFFSET 0) AS r
), starter AS (
    -- Who started the topmost run; of a schedule's, who made the schedule.
    SELECT coalesce(s.created_by, top.created_by) AS name FROM (SELECT created_by FROM up ORDER BY n DESC LIMIT 1) AS top
    LEFT JOIN schedules s ON s.tenant_id = %(tenant_id)s AND top.created_by ~ '^sched_[0-9a-f]{32}$'
        AND s.id = CASE WHEN top.created_by ~ '^sched_[0-9a-f]{32}$' THEN right(top.created_by, 32)::uuid END
), earlier AS (
    SELECT prev_run_id, memo FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(prev_run_id)s
    UNION ALL
    SELECT r.prev_run_id, r.memo
    FROM earlier CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = earlier.prev_run_id OFFSET 0) AS r
), left_over AS (
    SELECT least(
        (SELECT s.cost_usd_per_day - coalesce(d.cost_usd + d.reserved_usd, 0) FROM tenant_slots s
         LEFT JOIN tenant_days d ON d.tenant_id = s.tenant_id AND d.day = (clock_timestamp() AT TIME ZONE 'UTC')::date
         WHERE s.tenant_id = %(tenant_id)s),
        (SELECT p.cost_usd_per_day - coalesce(d.cost_usd + d.reserved_usd, 0) FROM platform p
         LEFT JOIN tenant_days d ON d.tenant_id = '00000000-0000-0000-0000-000000000000'::uuid AND d.day = (clock_timestamp() AT TIME ZONE 'UTC')::date
         WHERE p.name = 'global')) AS usd
)
SELECT coalesce((SELECT max(version) FROM policies WHERE tenant_id = %(tenant_id)s AND agent_name = ''), 0) AS tenant_version,
       coalesce((SELECT max(version) FROM policies WHERE tenant_id = %(tenant_id)s AND agent_name = %(agent_name)s AND agent_name <> ''), 0) AS agent_version,
       starter.name AS principal,
       (SELECT k.role FROM api_keys k WHERE k.tenant_id = %(tenant_id)s
            AND k.id = CASE WHEN starter.name ~ '^key_[0-9a-f]{32}$' THEN right(starter.name, 32)::uuid END) AS role,
       ARRAY(SELECT DISTINCT m FROM earlier, jsonb_array_elements_text(earlier.memo->'marks') AS m) AS marks,
       (SELECT usd FROM left_over) AS left_usd
FROM starter
