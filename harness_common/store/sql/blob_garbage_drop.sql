-- Forget blobs that were deleted, or that are named again.
DELETE FROM blob_garbage WHERE (tenant_id, sha256) IN (SELECT * FROM unnest(%(tenants)s::uuid[], %(digests)s::text[]))
