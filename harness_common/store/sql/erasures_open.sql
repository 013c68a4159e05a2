-- What is being erased, the oldest request first.
SELECT tenant_id, id, subject, target_tenant, user_id, phase, counts, asked_by, request_id, created_at
FROM erasures
WHERE finished_at IS NULL AND (subject = 'tenant' AND user_id IS NULL OR subject = 'user' AND user_id IS NOT NULL)
ORDER BY id LIMIT 20
