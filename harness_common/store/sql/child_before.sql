-- The run that this one goes on from, if it had a child for the same call: of the step that was under way there.
SELECT r.forked_from AS run_id FROM runs r
CROSS JOIN LATERAL (SELECT 1 FROM runs WHERE tenant_id = r.tenant_id AND parent_run_id = r.forked_from
    AND parent_step = %(step)s AND parent_idx = %(idx)s OFFSET 0) AS c
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s AND r.forked_step + 1 = %(step)s
