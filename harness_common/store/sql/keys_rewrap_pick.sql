-- Data keys that an older key-encryption key wraps, of those that this process has; held until the transaction ends.
SELECT tenant_id, version, kek_id, wrapped FROM tenant_keys
WHERE kek_id <> %(current)s AND kek_id = ANY(%(known)s)
ORDER BY tenant_id, version LIMIT %(limit)s FOR UPDATE SKIP LOCKED
