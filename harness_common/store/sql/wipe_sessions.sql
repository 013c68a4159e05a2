-- With the tenant's slots held (slots_hold.sql; no run starts meanwhile): delete sessions that have no run left, and old ones that never had one.
WITH old AS (
    SELECT s.id FROM sessions s WHERE s.tenant_id = %(tenant_id)s
      AND (s.id = ANY(%(ids)s::uuid[]) OR (%(before)s::uuid IS NOT NULL AND s.id < %(before)s::uuid))
      AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id) LIMIT 1000),
gone AS (DELETE FROM sessions WHERE tenant_id = %(tenant_id)s AND id IN (SELECT id FROM old) RETURNING 1)
SELECT count(*)::int AS sessions FROM gone
