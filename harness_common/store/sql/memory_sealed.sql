-- Read the newest encrypted facts of a user (and those for all), which can only be ranked once they are opened.
SELECT id, body, kind, trust, user_id, created_at, expires_at, provenance, sealed, embedded_by FROM memories
WHERE tenant_id = %(tenant_id)s AND scope = %(scope)s AND (user_id = %(user_id)s OR user_id IS NULL)
  AND (expires_at IS NULL OR expires_at > clock_timestamp()) AND trust = ANY(%(trusts)s) AND words IS NULL
ORDER BY id DESC LIMIT 1000
