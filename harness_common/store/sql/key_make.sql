-- Keep a new data key of a tenant; if another transaction was first, its key is returned.
WITH made AS (
    INSERT INTO tenant_keys (tenant_id, version, kek_id, wrapped)
    VALUES (%(tenant_id)s, %(version)s, %(kek_id)s, %(wrapped)s)
    ON CONFLICT (tenant_id, version) DO UPDATE SET version = EXCLUDED.version
    RETURNING tenant_id, version, kek_id, wrapped
)
SELECT * FROM made
