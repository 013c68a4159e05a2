-- End a key.
UPDATE api_keys SET revoked_at = clock_timestamp() WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND revoked_at IS NULL
