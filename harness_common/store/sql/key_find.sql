-- Find an API key by its public part: the only read that comes before the tenant is known. Expiry is judged by Postgres time.
SELECT k.tenant_id, k.id, k.name, k.public_id, secret_hash, role, scopes, t.operator,
       revoked_at IS NOT NULL AS revoked,
       extract(epoch FROM expires_at - clock_timestamp())::float8 AS expires_in_s,
       last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute' AS touch_due
FROM api_keys k JOIN tenants t ON t.tenant_id = k.tenant_id WHERE public_id = %(public_id)s
