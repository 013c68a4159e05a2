-- The slots of every tenant that runs, waits, may start something soon or is marked; of all tenants while there are few.
SELECT s.tenant_id, s.running, s.max_running, s.granted, s.weight, s.used_s AS settled_s,
       CASE WHEN s.turn_sum = 0 THEN 0 ELSE s.running * extract(epoch FROM clock_timestamp())::float8 - s.turn_sum END AS held_s,
       s.starts_per_s, extract(epoch FROM s.starts_tat)::float8 AS starts_tat_s, s.crowded,
       coalesce(s.last_admitted_at > clock_timestamp() - interval '1 minute', false) AS recent,
       (SELECT count(*) FROM tenant_slots WHERE running = 0 AND max_running > 0) AS idle,
       p.max_running AS all_running, p.starts_per_s AS all_starts_per_s, extract(epoch FROM p.starts_tat)::float8 AS all_starts_tat_s,
       extract(epoch FROM clock_timestamp())::float8 AS now_s
FROM tenant_slots s LEFT JOIN platform p ON p.name = 'global'
WHERE s.running > 0 OR s.granted > 0 OR s.crowded OR s.tenant_id = ANY(%(waiting)s::uuid[])
   OR s.last_admitted_at > clock_timestamp() - interval '1 minute' OR (SELECT count(*) FROM tenant_slots) <= %(few)s
ORDER BY s.tenant_id
