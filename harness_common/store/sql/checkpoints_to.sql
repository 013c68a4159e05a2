-- The newest snapshot at or before a step, and every delta after it up to that step.
SELECT step, delta, snapshot FROM checkpoints
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step <= %(step)s
  AND step >= coalesce((SELECT max(step) FROM checkpoints WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s
                        AND step <= %(step)s AND snapshot IS NOT NULL), 0)
ORDER BY step
