-- The newest data key of those tenants that want their bodies encrypted.
SELECT DISTINCT ON (k.tenant_id) k.tenant_id, k.version, k.kek_id, k.wrapped
FROM tenants t JOIN tenant_keys k ON k.tenant_id = t.tenant_id
WHERE t.tenant_id = ANY(%(tenant_ids)s::uuid[]) AND t.encrypted_since IS NOT NULL
ORDER BY k.tenant_id, k.version DESC
