-- The run that this one goes on from, if it had a child for the same call: of the step that was under way there.
SELECT r.forked_from AS run_id FROM runs r
JOIN runs c ON c.tenant_id = r.tenant_id AND c.parent_run_id = r.forked_from AND c.parent_step = %(step)s AND c.parent_idx = %(idx)s
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s AND r.forked_step + 1 = %(step)s
