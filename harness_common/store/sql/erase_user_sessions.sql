-- With the tenant's slots held: delete sessions of a user that have no run left.
WITH old AS (
    SELECT s.id FROM sessions s WHERE s.tenant_id = %(tenant_id)s AND s.user_id = %(user_id)s
      AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id) LIMIT %(limit)s),
trail AS (UPDATE audit SET detail = '{"erased": true}' WHERE tenant_id = %(tenant_id)s
          AND split_part(target, '.', 1) IN (SELECT 'sess_' || replace(id::text, '-', '') FROM old)),
gone AS (DELETE FROM sessions WHERE tenant_id = %(tenant_id)s AND id IN (SELECT id FROM old) RETURNING 1)
SELECT count(*)::int AS sessions FROM gone
