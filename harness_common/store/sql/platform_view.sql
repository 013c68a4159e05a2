-- The limits over all tenants, and what goes on; waiting runs are counted up to 10,000.
SELECT p.max_running, p.starts_per_s, p.steps_per_s, p.tokens_per_day, p.cost_usd_per_day,
       (SELECT coalesce(sum(running), 0)::int FROM tenant_slots) AS running,
       (SELECT count(*) FROM (
           (SELECT 1 FROM runs WHERE status = 'queued' AND held_for IS NULL LIMIT 10000)
           UNION ALL (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'key' LIMIT 10000)
           UNION ALL (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'session' LIMIT 10000)
           LIMIT 10000) AS waiting) AS queued
FROM (SELECT 1) AS one LEFT JOIN platform p ON p.name = 'global'
