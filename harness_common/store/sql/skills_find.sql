-- Find versions of skills, those asked for or else the newest, in the order asked; null where there is none.
SELECT w.n, w.name, w.version AS wanted, s.version, s.spec
FROM jsonb_to_recordset(%(wanted)s::jsonb) AS w (n int, name text, version int)
LEFT JOIN LATERAL (
    SELECT version, spec FROM skills
    WHERE tenant_id = %(tenant_id)s AND name = w.name AND version = coalesce(w.version, version)
    ORDER BY version DESC LIMIT 1) AS s ON true
ORDER BY w.n
