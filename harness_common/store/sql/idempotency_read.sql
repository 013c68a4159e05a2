-- Read what an idempotency key made.
SELECT k.body_digest, k.run_id, r.session_id, r.status FROM idempotency_keys k
JOIN runs r ON r.tenant_id = k.tenant_id AND r.id = k.run_id
WHERE k.tenant_id = %(tenant_id)s AND k.route = %(route)s AND k.key = %(key)s
