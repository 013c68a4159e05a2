-- Read facts by their ids, those that are there still, within one user's memory.
SELECT id, body, kind, trust, user_id, created_at, expires_at, provenance FROM memories
WHERE tenant_id = %(tenant_id)s AND scope = %(scope)s AND (user_id = %(user_id)s OR user_id IS NULL) AND id = ANY(%(ids)s::uuid[])
  AND (expires_at IS NULL OR expires_at > clock_timestamp())
