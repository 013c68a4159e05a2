-- Keep what a call that needs a person has to be made again with; an earlier answer is used up. Only by the owner of the run.
UPDATE tool_calls SET kept = %(kept)s::jsonb, answer = NULL
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
  AND EXISTS (SELECT 1 FROM runs WHERE runs.tenant_id = %(tenant_id)s AND runs.id = %(run_id)s AND fence = %(fence)s AND claim_id = %(claim_id)s)
RETURNING 1 AS kept, set_config('synchronous_commit', 'on', true)
