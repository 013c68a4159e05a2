-- Keep a data key as the current key-encryption key wraps it, if nobody has changed it since it was read.
UPDATE tenant_keys SET kek_id = %(kek_id)s, wrapped = %(wrapped)s, rewrapped_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND version = %(version)s AND kek_id = %(was)s
