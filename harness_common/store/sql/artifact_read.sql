-- Read an artifact's record.
SELECT id, run_id, name, media_type, sha256, size_bytes, created_at, sealed FROM artifacts
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
