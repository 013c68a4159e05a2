-- Tenants with runs that wait for a time which has come, who waits longest first; also those that nobody works on and whose wall clock
-- is over: no worker may ever come.
SELECT tenant_id FROM (
    SELECT tenant_id, wake_at FROM runs WHERE wake_at <= clock_timestamp()
      AND (status <> 'running' OR (claim_id IS NULL AND (limits->>'deadline')::timestamptz <= clock_timestamp()))
      AND NOT (id = ANY(%(skipped)s::uuid[])) ORDER BY wake_at LIMIT %(batch)s) AS due
GROUP BY tenant_id ORDER BY min(wake_at)
