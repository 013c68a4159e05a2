-- Close an attempt that will bring no result: unknown (it was begun) or cancelled (it was not). Loses to a result that came first.
UPDATE tool_calls SET status = %(status)s, finished_at = clock_timestamp(),
    evidence = jsonb_build_object('why', %(why)s::text, 'attempt_id', attempt_id, 'started_at', started_at)
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
  AND attempt_id = %(attempt_id)s AND status = 'running' AND resume_at IS NULL
RETURNING 1 AS marked, set_config('synchronous_commit', 'on', true)
