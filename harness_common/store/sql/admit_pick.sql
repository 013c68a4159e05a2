-- The next queued runs of a tenant: priority (0 first), then age.
SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND status = 'queued'
ORDER BY priority, queued_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
