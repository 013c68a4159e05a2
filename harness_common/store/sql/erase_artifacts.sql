-- Delete some artifacts of a tenant, also those that belong to no run; their blobs are looked at when nobody can be about to name them.
WITH gone AS (
    DELETE FROM artifacts WHERE tenant_id = %(tenant_id)s AND id IN (
        SELECT id FROM artifacts WHERE tenant_id = %(tenant_id)s LIMIT %(limit)s) RETURNING tenant_id, sha256),
garbage AS (
    INSERT INTO blob_garbage (tenant_id, sha256) SELECT DISTINCT tenant_id, sha256 FROM gone
    ON CONFLICT (tenant_id, sha256) DO UPDATE SET since = clock_timestamp(), look_at = clock_timestamp())
SELECT count(*)::int AS rows FROM gone
