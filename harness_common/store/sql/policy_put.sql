-- Add a version of a policy unless the newest one says the same, to the letter. No row: another writer took the number; ask again.
WITH newest AS (
    SELECT * FROM policies WHERE tenant_id = %(tenant_id)s AND agent_name = %(agent_name)s ORDER BY version DESC LIMIT 1
), made AS (
    INSERT INTO policies (tenant_id, agent_name, version, source, rules, digest, created_by)
    SELECT %(tenant_id)s, %(agent_name)s, coalesce((SELECT version FROM newest), 0) + 1, %(source)s, %(rules)s::jsonb, %(digest)s, %(created_by)s
    WHERE NOT EXISTS (SELECT 1 FROM newest WHERE digest = %(digest)s AND source = %(source)s)
    ON CONFLICT (tenant_id, agent_name, version) DO NOTHING
    RETURNING *
)
SELECT *, true AS made FROM made
UNION ALL SELECT *, false FROM newest WHERE digest = %(digest)s AND source = %(source)s
