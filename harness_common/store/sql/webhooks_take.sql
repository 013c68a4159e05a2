-- Take deliveries that are due, for a minute: whoever dies with them leaves them due again. None of webhooks that are `busy`, or disabled.
WITH due AS (
    SELECT tenant_id, id FROM webhook_deliveries d WHERE status = 'pending' AND next_at <= clock_timestamp()
    AND NOT EXISTS (SELECT 1 FROM webhooks w WHERE w.tenant_id = d.tenant_id AND w.id = d.webhook_id AND w.disabled_at IS NOT NULL)
    AND webhook_id <> ALL(%(busy)s::uuid[]) AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
    ORDER BY next_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE webhook_deliveries d SET attempt = d.attempt + 1, next_at = clock_timestamp() + interval '60 seconds' FROM due
    WHERE d.tenant_id = due.tenant_id AND d.id = due.id RETURNING d.*
)
SELECT taken.*, w.url, w.secret_n, w.rotated_at > clock_timestamp() - interval '24 hours' AS rotating,
       r.session_id, r.agent_name, r.agent_version, r.status AS run_status, r.tags, clock_timestamp() AS now
FROM taken JOIN webhooks w ON w.tenant_id = taken.tenant_id AND w.id = taken.webhook_id
LEFT JOIN runs r ON r.tenant_id = taken.tenant_id AND r.id = taken.run_id
