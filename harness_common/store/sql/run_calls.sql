-- The ledger of a run after a call (step, idx), up to a step if one is named, in order.
SELECT * FROM tool_calls
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND (step, idx) > (%(after_step)s, %(after_idx)s)
  AND (%(to_step)s::int IS NULL OR step <= %(to_step)s)
ORDER BY step, idx LIMIT %(limit)s
