-- Read what an idempotency key made.
SELECT k.body_digest, k.run_id, r.session_id, r.status,
       k.created_at < clock_timestamp() - make_interval(secs => %(ttl_s)s) AS past
FROM idempotency_keys k
JOIN runs r ON r.tenant_id = k.tenant_id AND r.id = k.run_id
WHERE k.tenant_id = %(tenant_id)s AND k.route = %(route)s AND k.key = %(key)s
