-- Give back claims untouched, because the run needs a newer version: no step, no failure, no event. The scheduler rings for it again,
-- a little later each time, and a process that knows what it is about takes it. What the step had reserved of the day is free again.
WITH was AS (
    SELECT tenant_id, id, reserved_tokens, reserved_usd, reserved_day FROM runs
    WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND claim_id = %(claim_id)s AND status = 'running' FOR UPDATE
), run AS (
    UPDATE runs SET claim_id = NULL, claimed_by = NULL, claimed_at = NULL, attempt = greatest(0, attempt - 1),
        reserved_tokens = 0, reserved_usd = 0, reserved_day = NULL,
        wake_at = clock_timestamp() + make_interval(secs => least(%(longest_s)s, %(first_s)s * power(2, greatest(0, least(rings, 16) - 1))))
    FROM was WHERE runs.tenant_id = was.tenant_id AND runs.id = was.id
    RETURNING was.tenant_id, was.reserved_tokens, was.reserved_usd, was.reserved_day
), day AS (
    -- The nil tenant is the platform; in the order in which commit.sql locks them.
    SELECT d.tenant_id, d.day, run.reserved_tokens, run.reserved_usd FROM tenant_days d
    JOIN run ON d.day = run.reserved_day AND d.tenant_id IN (run.tenant_id, '00000000-0000-0000-0000-000000000000'::uuid)
    ORDER BY d.day, d.tenant_id FOR UPDATE OF d
)
UPDATE tenant_days d SET reserved_tokens = d.reserved_tokens - day.reserved_tokens, reserved_usd = d.reserved_usd - day.reserved_usd
FROM day WHERE d.tenant_id = day.tenant_id AND d.day = day.day
