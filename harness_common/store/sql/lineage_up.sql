-- The runs above one: of which it is the child, and those from whose checkpoints it came; nearest first, at most 100.
-- `above` is a column of its own: as an expression of the join, row-level security would not let an index serve it.
WITH RECURSIVE up AS (
    SELECT r.tenant_id, r.id, r.parent_run_id, coalesce(r.parent_run_id, r.forked_from) AS above, 0 AS far, NULL::text AS as_what FROM runs r
    WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s
    UNION ALL
    SELECT r.tenant_id, r.id, r.parent_run_id, coalesce(r.parent_run_id, r.forked_from), up.far + 1,
        CASE WHEN r.id = up.parent_run_id THEN 'parent' ELSE 'forked_from' END
    FROM up JOIN runs r ON r.tenant_id = up.tenant_id AND r.id = up.above
    WHERE up.far < 100
)
SELECT r.id, r.status, r.cancel_requested, r.agent_name, r.agent_version, r.step, r.created_at, r.stop_reason,
    r.forked_step, r.parent_step, r.parent_idx, r.overrides, up.as_what AS relation
FROM up JOIN runs r ON r.tenant_id = up.tenant_id AND r.id = up.id
WHERE up.far > 0 ORDER BY up.far
