-- The child run of one call.
SELECT c.id, c.status, c.output, c.stop_reason, c.error, c.cost_usd, c.input_tokens, c.output_tokens,
       EXISTS (SELECT 1 FROM messages m WHERE m.tenant_id = c.tenant_id AND m.run_id = c.id AND m.trust = 'untrusted') AS untrusted,
       coalesce(c.memo->'marks', '[]') AS marks, c.limits, a.spec->'max_tokens_total' AS own_tokens, a.spec->'max_cost_usd' AS own_cost_usd
FROM runs c LEFT JOIN agents a ON a.tenant_id = c.tenant_id AND a.id = c.agent_id
WHERE c.tenant_id = %(tenant_id)s AND c.parent_run_id = %(run_id)s AND c.parent_step = %(step)s AND c.parent_idx = %(idx)s
