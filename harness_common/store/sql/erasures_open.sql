-- What is being erased and is not `known`, the oldest request first: those that wait must not hide the ones behind them.
SELECT tenant_id, id, subject, target_tenant, user_id, phase, counts, asked_by, request_id, created_at
FROM erasures
WHERE finished_at IS NULL AND NOT (id = ANY(%(known)s::uuid[])) AND (subject = 'tenant' AND user_id IS NULL OR subject = 'user' AND user_id IS NOT NULL)
ORDER BY id LIMIT 20
