-- Messages of the runs before this one in its session that are still shown, oldest first: of a compacted run from the first that is
-- shown on, and nothing before a run whose compaction stands for all that was before it. `refused`: a guardrail let none see it.
WITH RECURSIVE chain AS (
    SELECT id, prev_run_id, memo->'context' AS context, CASE WHEN stop_reason = 'guardrail_blocked' THEN (memo->>'refused_from')::int END AS refused,
        1 AS depth
    FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(prev_run_id)s
    UNION ALL
    SELECT r.id, r.prev_run_id, r.memo->'context', CASE WHEN r.stop_reason = 'guardrail_blocked' THEN (r.memo->>'refused_from')::int END,
        chain.depth + 1
    FROM chain CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = chain.prev_run_id OFFSET 0) AS r
    WHERE chain.context IS NULL OR chain.context->>'history_from' IS NOT NULL
)
SELECT chain.id AS run_id, chain.context, m.n, m.body::text AS body, coalesce(m.n >= chain.refused AND m.role IN ('user', 'tool'), false) AS refused
FROM chain JOIN messages m ON m.tenant_id = %(tenant_id)s AND m.run_id = chain.id
WHERE m.n >= coalesce((chain.context->>'from')::int, 1)
ORDER BY chain.depth DESC, m.n
