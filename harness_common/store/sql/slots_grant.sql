-- Give tenants other blocks of the global limit, never below what they already run. Only by the leader of this term.
UPDATE tenant_slots SET granted = greatest(g.granted, running)
FROM jsonb_to_recordset(%(blocks)s::jsonb) AS g (tenant_id uuid, granted int)
WHERE tenant_slots.tenant_id = g.tenant_id AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING tenant_slots.tenant_id, tenant_slots.granted
