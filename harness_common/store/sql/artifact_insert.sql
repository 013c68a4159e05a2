-- Record an artifact.
INSERT INTO artifacts (tenant_id, run_id, name, media_type, sha256, size_bytes, sealed)
VALUES (%(tenant_id)s, %(run_id)s, %(name)s, %(media_type)s, %(sha256)s, %(size_bytes)s, %(sealed)s)
RETURNING id, set_config('synchronous_commit', 'on', true)
