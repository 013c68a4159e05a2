-- Note that a key is in use, at most once a minute, and never at the price of waiting.
UPDATE api_keys SET last_used_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
  AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
RETURNING set_config('synchronous_commit', 'off', true)
