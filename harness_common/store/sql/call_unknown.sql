-- Mark an attempt whose owner is gone as unknown; loses to a result that came first.
UPDATE tool_calls SET status = 'unknown', finished_at = NULL,
    evidence = jsonb_build_object('why', %(why)s::text, 'attempt_id', attempt_id, 'started_at', started_at)
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
  AND attempt_id = %(attempt_id)s AND status = 'running'
RETURNING 1 AS marked, set_config('synchronous_commit', 'on', true)
