-- What a user has besides runs: facts; and in the audit trail its name.
WITH over AS (SELECT tenant_id, id FROM memories WHERE tenant_id = %(tenant_id)s AND user_id = %(user_id)s LIMIT %(limit)s),
     fact AS (DELETE FROM memories WHERE (tenant_id, id) IN (SELECT tenant_id, id FROM over) RETURNING 1),
     trail AS (UPDATE audit SET detail = '{"erased": true}' WHERE tenant_id = %(tenant_id)s AND detail->>'user_id' = %(user_id)s)
SELECT count(*)::int AS memories FROM fact
