-- Add one row to the audit trail.
INSERT INTO audit (tenant_id, actor, action, target, request_id, detail)
VALUES (%(tenant_id)s, %(actor)s, %(action)s, %(target)s, %(request_id)s, %(detail)s::jsonb)
