-- One call of the ledger with what a person needs to decide about it: its run, who started it, why it is unknown.
SELECT c.*, r.status AS run_status, r.step AS run_step, r.agent_name, coalesce(r.memo->'acting'->>0, r.agent_name) AS acting_name, r.cancel_requested AS run_cancel_requested, s.worker
FROM tool_calls c
JOIN runs r ON r.tenant_id = c.tenant_id AND r.id = c.run_id
LEFT JOIN LATERAL (
    SELECT e.payload->>'worker' AS worker FROM events e
    WHERE e.tenant_id = c.tenant_id AND e.run_id = c.run_id AND e.type = 'tool.started' AND e.step = c.step
      AND e.payload->>'call' = c.step || '.' || c.idx
    ORDER BY e.seq DESC LIMIT 1) AS s ON true
WHERE c.tenant_id = %(tenant_id)s AND c.run_id = %(run_id)s AND c.step = %(step)s AND c.idx = %(idx)s
