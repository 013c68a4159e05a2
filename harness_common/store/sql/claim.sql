-- Take ownership of a run that is ready: a new fence and a random claim id. Asynchronous commit: a lost claim is safe.
UPDATE runs SET
    fence = fence + 1, claim_id = %(claim_id)s, claimed_by = %(worker)s, claimed_at = clock_timestamp(),
    attempt = attempt + 1, wake_at = clock_timestamp() + make_interval(secs => %(hold_s)s)
WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND version = %(version)s AND status = 'running' AND claim_id IS NULL
RETURNING *, clock_timestamp() AS now, set_config('synchronous_commit', 'off', true)
