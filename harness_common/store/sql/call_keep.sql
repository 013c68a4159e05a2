-- Keep what calls of a step gave while others of it go on, so that a crash repeats only those: by the owner alone (INV6), reads and
-- idempotent calls only. Asynchronous commit: one that a Postgres crash forgets is repeated.
WITH run AS (
    SELECT tenant_id, id FROM runs
    WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND version = %(version)s AND fence = %(fence)s AND claim_id = %(claim_id)s
    FOR UPDATE
)
UPDATE tool_calls SET
    status = o.status, result = o.result, error_type = o.error_type, trust = o.trust, artifacts = o.artifacts,
    duration_ms = o.duration_ms, cost_usd = o.cost_usd, attempt = o.attempt, effect = o.effect, tool_version = o.tool_version,
    started_at = coalesce(tool_calls.started_at, clock_timestamp() - make_interval(secs => o.duration_ms / 1000)),
    resume_at = NULL, input_tokens = o.input_tokens, output_tokens = o.output_tokens, finished_at = clock_timestamp(),
    fingerprint = coalesce(o.fingerprint, tool_calls.fingerprint), ran_arguments = coalesce(o.ran_arguments::json, tool_calls.ran_arguments),
    failed_attempts = o.failed_attempts, duplicate_of = o.duplicate_of, cached_from = o.cached_from, cached_until = o.cached_until,
    served_by = coalesce(o.served_by, tool_calls.served_by), policy = coalesce(o.policy, tool_calls.policy)
FROM run, jsonb_to_recordset(%(outcomes)s::jsonb) AS o (
    step int, idx int, status text, result text, error_type text, trust text, artifacts text[],
    duration_ms double precision, cost_usd double precision, attempt int, effect text, tool_version text,
    input_tokens bigint, output_tokens bigint, fingerprint text, ran_arguments text, failed_attempts jsonb, duplicate_of text,
    cached_from text, cached_until timestamptz, served_by text, policy jsonb)
WHERE tool_calls.tenant_id = run.tenant_id AND tool_calls.run_id = run.id AND tool_calls.step = o.step AND tool_calls.idx = o.idx
  AND (tool_calls.status IN ('proposed', 'validating', 'awaiting_approval')
       OR (tool_calls.status = 'running' AND (tool_calls.resume_at IS NOT NULL OR tool_calls.attempt_id IS NULL)))
RETURNING tool_calls.idx, set_config('synchronous_commit', 'off', true)
