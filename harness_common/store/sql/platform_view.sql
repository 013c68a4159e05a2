-- The limits over all tenants, and what goes on, which two functions count over all of them.
SELECT p.max_running, p.starts_per_s, p.steps_per_s, p.tokens_per_day, p.cost_usd_per_day,
       platform_running() AS running, platform_queued() AS queued
FROM (SELECT 1) AS one LEFT JOIN platform p ON p.name = 'global'
