-- Record how an attempt at a delivery ended, if it is still this attempt's; too many that failed in a row disable the webhook.
WITH d AS (
    UPDATE webhook_deliveries SET status = %(status)s, response_status = %(response_status)s, error = %(error)s,
        next_at = CASE WHEN %(status)s = 'pending' THEN clock_timestamp() + make_interval(secs => %(again_s)s) END,
        delivered_at = CASE WHEN %(status)s = 'delivered' THEN clock_timestamp() END
    WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND attempt = %(attempt)s AND status = 'pending'
    RETURNING tenant_id, webhook_id
)
UPDATE webhooks w SET failures = CASE %(status)s WHEN 'delivered' THEN 0 WHEN 'failed' THEN failures + 1 ELSE failures END,
    disabled_at = CASE WHEN %(gone)s OR (%(status)s = 'failed' AND failures + 1 >= %(most)s) THEN coalesce(disabled_at, clock_timestamp()) ELSE disabled_at END,
    disabled_why = CASE WHEN %(gone)s THEN 'it answered 410 Gone' WHEN %(status)s = 'failed' AND failures + 1 >= %(most)s
                        THEN coalesce(disabled_why, %(most)s || ' deliveries in a row failed; the last: ' || %(error)s) ELSE disabled_why END
FROM d WHERE w.tenant_id = d.tenant_id AND w.id = d.webhook_id
RETURNING w.disabled_at IS NOT NULL AS disabled
