-- How many data keys each key-encryption key wraps.
SELECT kek_id, count(*)::int AS data_keys FROM tenant_keys GROUP BY kek_id ORDER BY kek_id
