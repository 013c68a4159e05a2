-- Calls of a tenant of which nobody knows whether they took effect, the newest run's first; after (run, step, idx).
SELECT c.*, r.status AS run_status, r.step AS run_step, r.agent_name, coalesce(r.memo->'acting'->>0, r.agent_name) AS acting_name, r.cancel_requested AS run_cancel_requested, s.worker
FROM tool_calls c
JOIN runs r ON r.tenant_id = c.tenant_id AND r.id = c.run_id
LEFT JOIN LATERAL (
    SELECT e.payload->>'worker' AS worker FROM events e
    WHERE e.tenant_id = c.tenant_id AND e.run_id = c.run_id AND e.type = 'tool.started' AND e.step = c.step
      AND e.payload->>'call' = c.step || '.' || c.idx
    ORDER BY e.seq DESC LIMIT 1) AS s ON true
WHERE c.tenant_id = %(tenant_id)s AND c.status = 'unknown'
  AND (%(run_id)s::uuid IS NULL OR c.run_id = %(run_id)s)
  AND (%(after_run)s::uuid IS NULL OR c.run_id < %(after_run)s
       OR (c.run_id = %(after_run)s AND (c.step, c.idx) > (%(after_step)s, %(after_idx)s)))
ORDER BY c.run_id DESC, c.step, c.idx LIMIT %(limit)s
