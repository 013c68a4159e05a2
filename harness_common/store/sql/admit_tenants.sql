-- Tenants with room and somebody waiting, longest unserved first.
SELECT s.tenant_id FROM tenant_slots s
WHERE s.running < least(s.max_running, s.granted)
  AND EXISTS (SELECT 1 FROM runs q WHERE q.tenant_id = s.tenant_id AND q.status = 'queued' AND q.held_for IS NULL)
ORDER BY s.last_admitted_at NULLS FIRST LIMIT %(batch)s
