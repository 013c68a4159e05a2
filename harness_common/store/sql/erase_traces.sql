-- What runs left outside of themselves: facts that rest on them are deleted; the audit trail keeps who did what and when, not what was said.
WITH fact AS (DELETE FROM memories WHERE tenant_id = %(tenant_id)s AND provenance->>'run' = ANY(%(external)s) RETURNING 1),
     trail AS (
        UPDATE audit SET detail = '{"erased": true}' WHERE tenant_id = %(tenant_id)s
          AND split_part(target, '.', 1) = ANY(%(external)s::text[] || ARRAY(
            SELECT 'appr_' || replace(a.id::text, '-', '') FROM approvals a WHERE a.tenant_id = %(tenant_id)s AND a.run_id = ANY(%(ids)s::uuid[]))))
SELECT count(*)::int AS memories FROM fact
