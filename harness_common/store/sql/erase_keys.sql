-- Destroy a tenant's data keys and secrets: what was encrypted under them is unreadable from now on, wherever a copy of it lies.
WITH s AS (DELETE FROM secrets WHERE tenant_id = %(tenant_id)s RETURNING 1),
     k AS (DELETE FROM tenant_keys WHERE tenant_id = %(tenant_id)s RETURNING 1)
SELECT (SELECT count(*) FROM k)::int AS data_keys, (SELECT count(*) FROM s)::int AS secrets
