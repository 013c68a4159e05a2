-- Add a version of a skill unless the newest one has the same digest. No row: another writer took the number; ask again.
WITH newest AS (
    SELECT * FROM skills WHERE tenant_id = %(tenant_id)s AND name = %(name)s ORDER BY version DESC LIMIT 1
), made AS (
    INSERT INTO skills (tenant_id, name, version, spec, digest, created_by)
    SELECT %(tenant_id)s, %(name)s, coalesce((SELECT version FROM newest), 0) + 1, %(spec)s::jsonb, %(digest)s, %(created_by)s
    WHERE NOT EXISTS (SELECT 1 FROM newest WHERE digest = %(digest)s)
    ON CONFLICT (tenant_id, name, version) DO NOTHING
    RETURNING *
)
SELECT *, true AS made FROM made
UNION ALL SELECT *, false FROM newest WHERE digest = %(digest)s
