-- Mark the tenants one of whose slots a waiting run could use, and unmark the others. Only by the leader of this term.
UPDATE tenant_slots SET crowded = (tenant_id = ANY(%(crowded)s::uuid[]))
WHERE tenant_id = ANY(%(changed)s::uuid[]) AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING tenant_id
