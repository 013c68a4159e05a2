-- Record how an attempt ended, as soon as it is known. The first of result and "unknown" wins; a later result is evidence.
WITH won AS (
    UPDATE tool_calls SET status = %(status)s, result = %(result)s, error_type = %(error_type)s, trust = %(trust)s,
        artifacts = %(artifacts)s, duration_ms = %(duration_ms)s, cost_usd = %(cost_usd)s, resume_at = %(resume_at)s,
        finished_at = CASE WHEN %(status)s <> 'running' THEN clock_timestamp() END
    WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
      AND attempt_id = %(attempt_id)s AND status = 'running'
    RETURNING 1
), late AS (
    UPDATE tool_calls SET evidence = %(evidence)s::jsonb
    WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
      AND attempt_id = %(attempt_id)s AND status = 'unknown' AND NOT EXISTS (SELECT 1 FROM won)
)
SELECT EXISTS (SELECT 1 FROM won) AS won, set_config('synchronous_commit', 'on', true)
