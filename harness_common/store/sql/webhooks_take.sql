-- Take deliveries that are due, for a minute: whoever dies with them leaves them due again. Of one tenant no more than `most` are
-- under way at once (`held` counts them by tenant): an address that never answers must not hold up the others.
WITH near AS (
    SELECT tenant_id, id, next_at FROM webhook_deliveries WHERE status = 'pending' AND next_at <= clock_timestamp()
    AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
    AND coalesce((%(held)s::jsonb ->> tenant_id::text)::int, 0) < %(most)s
    ORDER BY next_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), ranked AS (
    SELECT tenant_id, id, row_number() OVER (PARTITION BY tenant_id ORDER BY next_at, id) AS place FROM near
), due AS (
    SELECT tenant_id, id FROM ranked WHERE place + coalesce((%(held)s::jsonb ->> tenant_id::text)::int, 0) <= %(most)s
), taken AS (
    UPDATE webhook_deliveries d SET attempt = d.attempt + 1, next_at = clock_timestamp() + interval '60 seconds' FROM due
    WHERE d.tenant_id = due.tenant_id AND d.id = due.id RETURNING d.*
)
SELECT taken.*, w.url, w.secret_n, w.rotated_at > clock_timestamp() - interval '24 hours' AS rotating,
       r.session_id, r.agent_name, r.agent_version, r.status AS run_status, r.tags, clock_timestamp() AS now
FROM taken JOIN webhooks w ON w.tenant_id = taken.tenant_id AND w.id = taken.webhook_id
LEFT JOIN runs r ON r.tenant_id = taken.tenant_id AND r.id = taken.run_id
