-- Give a tenant another block of the global limit, never below what it already runs. Only by the leader of this term.
UPDATE tenant_slots SET granted = greatest(%(granted)s, running)
WHERE tenant_id = %(tenant_id)s AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING granted
