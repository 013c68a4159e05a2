-- The runs of a session that are not over, the newest first: before one that has begun there are none.
WITH RECURSIVE run AS (
    SELECT r.id, r.prev_run_id, r.started, r.finished_at, r.cancel_requested, 1 AS nth
    FROM sessions s JOIN runs r ON r.tenant_id = s.tenant_id AND r.id = s.head_run_id
    WHERE s.tenant_id = %(tenant_id)s AND s.id = %(session_id)s
    UNION ALL
    SELECT p.id, p.prev_run_id, p.started, p.finished_at, p.cancel_requested, run.nth + 1
    FROM run CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = run.prev_run_id OFFSET 0) AS p
    WHERE NOT run.started AND p.session_id = %(session_id)s
)
SELECT id AS run_id, cancel_requested FROM run WHERE finished_at IS NULL ORDER BY nth
