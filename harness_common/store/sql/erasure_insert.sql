-- Ask for an erasure; of one that is under way already, its row.
INSERT INTO erasures (tenant_id, subject, target_tenant, user_id, asked_by, request_id)
SELECT %(tenant_id)s, %(subject)s, %(target_tenant)s, %(user_id)s::text, %(asked_by)s, %(request_id)s::text
RETURNING id
