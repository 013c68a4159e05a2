-- Note bytes that are about to be kept, before they are: should whoever keeps them die before it names them, they are looked at in an
-- hour, when nobody can be about to any more. `artifact_insert` takes the note away. One that a crash of Postgres forgets costs a blob.
INSERT INTO blob_garbage (tenant_id, sha256, look_at) VALUES (%(tenant_id)s, %(sha256)s, clock_timestamp() + interval '1 hour')
ON CONFLICT (tenant_id, sha256) DO UPDATE SET look_at = excluded.look_at
RETURNING set_config('synchronous_commit', 'off', true)
