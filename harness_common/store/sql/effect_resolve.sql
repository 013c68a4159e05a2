-- A person says what became of an unknown effect: compare-and-set on 'unknown'; none comes back when somebody was first.
-- What was known before (evidence, an earlier resolution, the result) is kept in `resolution`. The run's row is locked already.
UPDATE tool_calls SET
    status = %(status)s,
    result = %(result)s,
    error_type = %(error_type)s,
    trust = 'trusted',
    finished_at = CASE WHEN %(status)s <> 'proposed' THEN clock_timestamp() END,
    attempt_id = CASE WHEN %(status)s <> 'proposed' THEN attempt_id END,
    resume_at = NULL,
    authorised = authorised + CASE WHEN %(status)s = 'proposed' THEN 1 ELSE 0 END,
    evidence = CASE WHEN %(status)s <> 'proposed' THEN evidence END,
    resolution = %(resolution)s::jsonb || jsonb_strip_nulls(jsonb_build_object(
        'at', clock_timestamp(), 'evidence', evidence, 'error_type', error_type, 'result_before', CASE WHEN result LIKE 'hsealed1.%%' THEN result ELSE left(result, 2000) END,
        'before', resolution))
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s AND status = 'unknown'
RETURNING step, idx
