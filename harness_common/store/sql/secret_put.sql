-- Take the next version of a secret; the row is held until its value follows in the same transaction.
INSERT INTO secrets (tenant_id, name, value, set_by) VALUES (%(tenant_id)s, %(name)s, '', %(by)s)
ON CONFLICT (tenant_id, name) DO UPDATE SET version = secrets.version + 1, set_by = EXCLUDED.set_by, set_at = clock_timestamp()
RETURNING version
