-- What a retry comes after in its session: what the last run there came after, if that one is the run itself or a retry of it that came to
-- nothing, whose place it takes; else that last run, with which the conversation went on.
WITH RECURSIVE last AS (
    SELECT h.id, h.prev_run_id, h.forked_from, h.status FROM sessions s JOIN runs h ON h.tenant_id = s.tenant_id AND h.id = s.head_run_id
    WHERE s.tenant_id = %(tenant_id)s AND s.id = %(session_id)s
), up AS (
    SELECT id, forked_from FROM last WHERE status <> 'succeeded'
    UNION ALL
    SELECT r.id, r.forked_from
    FROM up CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = up.forked_from OFFSET 0) AS r
    WHERE r.session_id = %(session_id)s
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM up WHERE id = %(run_id)s) THEN prev_run_id ELSE id END AS prev_run_id FROM last
