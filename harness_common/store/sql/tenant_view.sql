-- A tenant with its limits and what it has going; waiting runs are counted up to 10,000.
SELECT t.tenant_id, t.name, s.max_running, s.weight, s.starts_per_s, s.steps_per_s, s.tokens_per_day, s.cost_usd_per_day, s.running,
       s.used_s + CASE WHEN s.turn_sum = 0 THEN 0 ELSE s.running * extract(epoch FROM clock_timestamp())::float8 - s.turn_sum END AS slot_seconds,
       (SELECT count(*) FROM (
           (SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.held_for IS NULL LIMIT 10000)
           UNION ALL (SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.held_for = 'key' LIMIT 10000)
           UNION ALL (SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.held_for = 'session' LIMIT 10000)
           LIMIT 10000) AS waiting) AS queued
FROM tenants t JOIN tenant_slots s ON s.tenant_id = t.tenant_id WHERE t.tenant_id = %(tenant_id)s
