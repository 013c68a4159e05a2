-- Make the ledger row of a call that code asks for within a step, or find the one it made: by the owner alone, one row a `tool_use_id` of the step.
WITH run AS (
    SELECT tenant_id, id FROM runs
    WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND version = %(version)s AND fence = %(fence)s AND claim_id = %(claim_id)s
    FOR UPDATE
), made AS (
    INSERT INTO tool_calls (tenant_id, run_id, step, idx, tool_use_id, name, arguments, status)
    SELECT run.tenant_id, run.id, %(step)s,
        (SELECT coalesce(max(t.idx) + 1, 0) FROM tool_calls t WHERE t.tenant_id = run.tenant_id AND t.run_id = run.id AND t.step = %(step)s),
        %(tool_use_id)s, %(name)s, %(arguments)s::json, 'proposed' FROM run
    WHERE NOT EXISTS (SELECT 1 FROM tool_calls t WHERE t.tenant_id = run.tenant_id AND t.run_id = run.id AND t.step = %(step)s
                      AND t.tool_use_id = %(tool_use_id)s)
    RETURNING *
)
SELECT to_jsonb(made) AS call, set_config('synchronous_commit', 'on', true) FROM made
UNION ALL
SELECT to_jsonb(t), NULL FROM run JOIN tool_calls t ON t.tenant_id = run.tenant_id AND t.run_id = run.id
WHERE t.step = %(step)s AND t.tool_use_id = %(tool_use_id)s
