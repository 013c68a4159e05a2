-- Close a tenant that is being erased: nobody comes in, nothing starts, nothing fires, nothing is told.
WITH k AS (UPDATE api_keys SET revoked_at = clock_timestamp() WHERE tenant_id = %(tenant_id)s AND revoked_at IS NULL),
     s AS (UPDATE tenant_slots SET max_running = 0 WHERE tenant_id = %(tenant_id)s AND max_running <> 0),
     c AS (UPDATE schedules SET paused_at = clock_timestamp(), pause_reason = 'the tenant is being erased', next_at = NULL WHERE tenant_id = %(tenant_id)s AND (paused_at IS NULL OR next_at IS NOT NULL)),
     h AS (UPDATE webhooks SET disabled_at = clock_timestamp(), disabled_why = 'the tenant is being erased' WHERE tenant_id = %(tenant_id)s AND disabled_at IS NULL)
UPDATE webhook_deliveries SET status = 'held' WHERE tenant_id = %(tenant_id)s AND status = 'pending'
