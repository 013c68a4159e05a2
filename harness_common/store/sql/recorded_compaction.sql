-- Whether a step of a run was a compaction (a fork has none of its source's checkpoints), and what a user message of it says.
SELECT (SELECT c.kind FROM checkpoints c
        WHERE c.tenant_id = %(tenant_id)s AND c.run_id = %(run_id)s AND c.step = %(step)s) AS kind, m.body::text AS body
FROM (VALUES (1)) AS one LEFT JOIN LATERAL (
    SELECT body FROM messages WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND role = 'user'
    ORDER BY n LIMIT 1) AS m ON true
