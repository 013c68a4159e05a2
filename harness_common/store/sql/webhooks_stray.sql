-- Disabled webhooks for which something is due all the same: it came in the moment of the disable, or whoever disabled one died then.
SELECT DISTINCT d.tenant_id, d.webhook_id FROM webhook_deliveries d JOIN webhooks w ON w.tenant_id = d.tenant_id AND w.id = d.webhook_id
WHERE d.status = 'pending' AND d.next_at <= clock_timestamp() AND w.disabled_at IS NOT NULL
AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s) LIMIT 20
