-- Reserve an idempotency key for one run; an old one past its time is taken over. Waits for a twin that is under way.
WITH mine AS (
    INSERT INTO idempotency_keys AS k (tenant_id, route, key, body_digest, run_id)
    VALUES (%(tenant_id)s, %(route)s, %(key)s, %(digest)s, %(run_id)s)
    ON CONFLICT (tenant_id, route, key) DO UPDATE
        SET body_digest = excluded.body_digest, run_id = excluded.run_id, created_at = clock_timestamp()
        WHERE k.created_at < clock_timestamp() - make_interval(secs => %(ttl_s)s)
    RETURNING run_id
)
SELECT EXISTS (SELECT 1 FROM mine) AS reserved
