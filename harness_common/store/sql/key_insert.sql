-- Add an API key.
INSERT INTO api_keys (tenant_id, name, public_id, secret_hash, role, scopes, expires_at, rotated_from)
VALUES (%(tenant_id)s, %(name)s, %(public_id)s, %(secret_hash)s, %(role)s, %(scopes)s,
        coalesce(%(expires_at)s::timestamptz, clock_timestamp() + make_interval(secs => %(lives_s)s::float8)), %(rotated_from)s)
RETURNING *, clock_timestamp() AS now
