-- Give back claims untouched, because the run needs a newer version: no step, no failure, no event. The scheduler rings for it again,
-- a little later each time, and a process that knows what it is about takes it.
UPDATE runs SET claim_id = NULL, claimed_by = NULL, claimed_at = NULL, attempt = greatest(0, attempt - 1),
    wake_at = clock_timestamp() + make_interval(secs => least(%(longest_s)s, %(first_s)s * power(2, greatest(0, least(rings, 16) - 1))))
WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND claim_id = %(claim_id)s AND status = 'running'
