-- Commit the intent to run a tool with an effect: only by the owner, only if no cancel was asked, and once (INV3, INV9).
-- The ledger row is locked first: whoever waits for it sees it as it is then.
WITH held AS (
    SELECT tenant_id, run_id, step, idx FROM tool_calls
    WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
      AND attempt_id IS NOT DISTINCT FROM %(prior_attempt_id)s AND status = ANY(%(from_status)s)
    FOR UPDATE
), run AS (
    UPDATE runs SET next_seq = next_seq + 1 FROM held
    WHERE runs.tenant_id = held.tenant_id AND runs.id = held.run_id AND version = %(version)s AND fence = %(fence)s
      -- So written, the index of all that is claimed is no way to one run.
      AND claim_id IS NOT DISTINCT FROM %(claim_id)s AND NOT cancel_requested
      AND (%(approval_id)s::uuid IS NULL OR EXISTS (
          SELECT 1 FROM approvals a WHERE a.tenant_id = held.tenant_id AND a.id = %(approval_id)s AND a.run_id = held.run_id
            AND a.step = held.step AND a.idx = held.idx AND a.status = 'approved' AND a.digest = %(approval_digest)s
            AND a.tool_version = %(tool_version)s))
    RETURNING runs.tenant_id, runs.id, next_seq - 1 AS seq, claimed_by
), used AS (
    -- A person's yes is good for one intent, for exactly what was shown (INV19).
    UPDATE approvals SET status = 'used', used_at = clock_timestamp() FROM run
    WHERE approvals.tenant_id = run.tenant_id AND approvals.id = %(approval_id)s AND approvals.status = 'approved'
    RETURNING approvals.id
), call AS (
    UPDATE tool_calls SET status = 'running', attempt_id = %(attempt_id)s, attempt = attempt + 1, effect = %(effect)s,
        tool_version = %(tool_version)s, fingerprint = %(fingerprint)s,
        ran_arguments = %(ran_arguments)s::json, served_by = %(served_by)s, started_at = clock_timestamp(), resume_at = NULL,
        policy = coalesce(%(policy)s::jsonb, policy)
    FROM run WHERE tool_calls.tenant_id = run.tenant_id AND tool_calls.run_id = run.id AND step = %(step)s AND idx = %(idx)s
      AND (%(approval_id)s::uuid IS NULL OR EXISTS (SELECT 1 FROM used))
    RETURNING tool_calls.attempt
), event AS (
    INSERT INTO events (tenant_id, run_id, seq, type, step, payload)
    SELECT run.tenant_id, run.id, run.seq, 'tool.started', %(step)s,
        %(payload)s::jsonb || jsonb_build_object('worker', (SELECT name FROM workers WHERE incarnation = run.claimed_by)) FROM run
)
SELECT call.attempt, set_config('synchronous_commit', 'on', true) FROM call
