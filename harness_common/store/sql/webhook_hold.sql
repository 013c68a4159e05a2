-- Hold what waits to be delivered to a disabled webhook, or let it go when it is enabled again.
UPDATE webhook_deliveries d SET status = CASE WHEN w.disabled_at IS NULL THEN 'pending' ELSE 'held' END, next_at = clock_timestamp()
FROM webhooks w WHERE w.tenant_id = %(tenant_id)s AND w.id = %(webhook_id)s AND d.tenant_id = w.tenant_id AND d.webhook_id = w.id
AND d.status = CASE WHEN w.disabled_at IS NULL THEN 'held' ELSE 'pending' END
