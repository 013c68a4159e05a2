-- Runs of a tenant that are not over.
SELECT r.id, r.cancel_requested FROM runs r WHERE r.tenant_id = %(tenant_id)s AND r.finished_at IS NULL LIMIT %(limit)s
