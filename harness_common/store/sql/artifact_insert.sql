-- Record an artifact; its bytes are named now. No row back: its run is gone, and they are looked at like those of a deleted artifact.
WITH run AS (
    -- Whoever deletes the run holds it: this comes before, and goes with it, or after, and finds nothing.
    SELECT 1 FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s::uuid FOR KEY SHARE
), made AS (
    INSERT INTO artifacts (tenant_id, run_id, name, media_type, sha256, size_bytes, sealed)
    SELECT %(tenant_id)s, %(run_id)s::uuid, %(name)s, %(media_type)s, %(sha256)s, %(size_bytes)s, %(sealed)s::text
    WHERE %(run_id)s::uuid IS NULL OR EXISTS (SELECT 1 FROM run)
    RETURNING id
), named AS (
    DELETE FROM blob_garbage WHERE tenant_id = %(tenant_id)s AND sha256 = %(sha256)s AND EXISTS (SELECT 1 FROM made)
), garbage AS (
    INSERT INTO blob_garbage (tenant_id, sha256) SELECT %(tenant_id)s, %(sha256)s WHERE NOT EXISTS (SELECT 1 FROM made)
    ON CONFLICT (tenant_id, sha256) DO UPDATE SET look_at = clock_timestamp()
)
SELECT id, set_config('synchronous_commit', 'on', true) FROM made
