-- Read a secret to use it, and note when. Asynchronous commit: the note may be lost.
UPDATE secrets SET last_used_at = clock_timestamp() WHERE tenant_id = %(tenant_id)s AND name = %(name)s
RETURNING version, value, set_config('synchronous_commit', 'off', true)
