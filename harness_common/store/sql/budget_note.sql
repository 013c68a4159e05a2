-- Note on a run what its step reserves of the day's budget: only by its owner.
UPDATE runs SET reserved_tokens = %(tokens)s, reserved_usd = %(cost_usd)s, reserved_day = (clock_timestamp() AT TIME ZONE 'UTC')::date
WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND fence = %(fence)s AND claim_id = %(claim_id)s
RETURNING reserved_day AS day
