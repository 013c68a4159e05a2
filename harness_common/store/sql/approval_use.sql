-- Use an approval for a call that needs no intent: only the owner, only if no cancel was asked, once, for exactly what was approved (INV19).
WITH run AS (
    SELECT tenant_id, id FROM runs
    WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND version = %(version)s AND fence = %(fence)s
      AND claim_id = %(claim_id)s AND NOT cancel_requested
    FOR UPDATE
)
UPDATE approvals SET status = 'used', used_at = clock_timestamp() FROM run
WHERE approvals.tenant_id = run.tenant_id AND approvals.run_id = run.id AND approvals.id = %(approval_id)s
  AND approvals.step = %(step)s AND approvals.idx = %(idx)s AND approvals.status = 'approved'
  AND approvals.digest = %(digest)s AND approvals.tool_version = %(tool_version)s
RETURNING approvals.id, set_config('synchronous_commit', 'on', true)
