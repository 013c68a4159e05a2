-- Record an outside input, numbered under the run's row lock.
INSERT INTO inputs (tenant_id, run_id, n, kind, body, created_by)
VALUES (%(tenant_id)s, %(run_id)s, %(n)s, %(kind)s, %(body)s::jsonb, %(created_by)s)
