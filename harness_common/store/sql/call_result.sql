-- Record how an attempt ended, as soon as it is known. The first of result and "unknown" wins; a later result is evidence.
-- Safe to repeat: where this very result is written already, since only the reply got lost, it has won.
WITH held AS (
    SELECT tenant_id, run_id, step, idx, status AS was FROM tool_calls
    WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
      AND attempt_id = %(attempt_id)s AND status IN ('running', 'unknown')
    FOR UPDATE
), won AS (
    UPDATE tool_calls SET status = %(status)s, result = %(result)s, error_type = %(error_type)s, trust = %(trust)s,
        artifacts = %(artifacts)s, duration_ms = %(duration_ms)s, cost_usd = %(cost_usd)s, resume_at = %(resume_at)s,
        finished_at = CASE WHEN %(status)s <> 'running' THEN clock_timestamp() END
    FROM held WHERE held.was = 'running' AND tool_calls.tenant_id = held.tenant_id AND tool_calls.run_id = held.run_id
      AND tool_calls.step = held.step AND tool_calls.idx = held.idx
    RETURNING 1
), late AS (
    UPDATE tool_calls SET evidence = coalesce(evidence, '{}'::jsonb) || %(evidence)s::jsonb
    FROM held WHERE held.was = 'unknown' AND tool_calls.tenant_id = held.tenant_id AND tool_calls.run_id = held.run_id
      AND tool_calls.step = held.step AND tool_calls.idx = held.idx
)
SELECT EXISTS (SELECT 1 FROM won) OR EXISTS (
    SELECT 1 FROM tool_calls
    WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
      AND attempt_id = %(attempt_id)s AND status = %(status)s AND status NOT IN ('running', 'unknown') AND result IS NOT DISTINCT FROM %(result)s) AS won, set_config('synchronous_commit', 'on', true)
