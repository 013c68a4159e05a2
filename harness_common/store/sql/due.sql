-- Tenants with runs that wait for a time which has come.
SELECT DISTINCT tenant_id FROM (
    SELECT tenant_id FROM runs WHERE wake_at <= clock_timestamp() AND status <> 'running'
      AND NOT (id = ANY(%(skipped)s::uuid[])) ORDER BY wake_at LIMIT %(batch)s) AS due
