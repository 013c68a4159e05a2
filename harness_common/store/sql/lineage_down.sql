-- The children of a run and the runs from its checkpoints, oldest first, at most 100 of each.
(SELECT r.id, r.status, r.cancel_requested, r.agent_name, r.agent_version, r.step, r.created_at, r.stop_reason,
    r.forked_step, r.parent_step, r.parent_idx, r.overrides, 'child' AS relation
 FROM runs r WHERE r.tenant_id = %(tenant_id)s AND r.parent_run_id = %(run_id)s
 ORDER BY r.parent_step, r.parent_idx LIMIT 100)
UNION ALL
(SELECT r.id, r.status, r.cancel_requested, r.agent_name, r.agent_version, r.step, r.created_at, r.stop_reason,
    r.forked_step, r.parent_step, r.parent_idx, r.overrides,
    CASE WHEN r.session_id = s.session_id THEN 'retry' ELSE 'fork' END AS relation
 FROM runs s JOIN runs r ON r.tenant_id = s.tenant_id AND r.forked_from = s.id
 WHERE s.tenant_id = %(tenant_id)s AND s.id = %(run_id)s
 ORDER BY r.id LIMIT 100)
