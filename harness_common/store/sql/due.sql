-- Tenants with runs that wait for a time which has come, who waits longest first.
SELECT tenant_id FROM (
    SELECT tenant_id, wake_at FROM runs WHERE wake_at <= clock_timestamp() AND status <> 'running'
      AND NOT (id = ANY(%(skipped)s::uuid[])) ORDER BY wake_at LIMIT %(batch)s) AS due
GROUP BY tenant_id ORDER BY min(wake_at)
