-- The runs of a tenant that wait for something, oldest first; how many of each status (of the oldest 1,000) comes with each.
SELECT id, status, agent_name, agent_version, not_before, waiting, updated_at, count(*) OVER (PARTITION BY status)::int AS of_status
FROM (SELECT id, status, agent_name, agent_version, not_before, waiting, updated_at FROM runs
      WHERE tenant_id = %(tenant_id)s
        AND status IN ('waiting_approval', 'waiting_input', 'waiting_tool', 'waiting_children', 'delayed', 'paused')
      ORDER BY id LIMIT 1000) AS waiting
ORDER BY updated_at
