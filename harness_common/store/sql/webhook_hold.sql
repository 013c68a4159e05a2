-- Hold what waits to be delivered to a disabled webhook, or let it go when it is enabled again. The webhook is held meanwhile: who
-- enables it in that moment is waited for, else what waits would be held for ever.
WITH w AS (SELECT tenant_id, id, disabled_at FROM webhooks WHERE tenant_id = %(tenant_id)s AND id = %(webhook_id)s FOR SHARE)
UPDATE webhook_deliveries d SET status = CASE WHEN w.disabled_at IS NULL THEN 'pending' ELSE 'held' END, next_at = clock_timestamp()
FROM w WHERE d.tenant_id = w.tenant_id AND d.webhook_id = w.id
AND d.status = CASE WHEN w.disabled_at IS NULL THEN 'held' ELSE 'pending' END
