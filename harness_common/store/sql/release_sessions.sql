-- Let runs go that waited for those before theirs in the session, which are over; one with a concurrency key waits for that next.
-- One that ended before it began (cancelled, too late) may still stand behind others. Before one that has begun all are over.
-- Looks at some after a cursor; answers with the last one looked at.
WITH page AS MATERIALIZED (
    SELECT tenant_id, prev_run_id, id, session_id FROM runs WHERE status = 'queued' AND held_for = 'session'
      AND (tenant_id, prev_run_id) > (%(tenant_id)s::uuid, %(prev)s::uuid)
    ORDER BY tenant_id, prev_run_id LIMIT %(most)s
), gone AS (
    UPDATE runs SET held_for = CASE WHEN runs.concurrency_key IS NOT NULL THEN 'key' END
    FROM page
    WHERE runs.tenant_id = page.tenant_id AND runs.id = page.id AND runs.status = 'queued' AND runs.held_for = 'session'
      AND NOT EXISTS (
        WITH RECURSIVE before AS (
            SELECT p.prev_run_id, p.started, p.finished_at FROM runs p
            WHERE p.tenant_id = page.tenant_id AND p.id = page.prev_run_id AND p.session_id = page.session_id
            UNION ALL
            SELECT p.prev_run_id, p.started, p.finished_at
            FROM before b CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = page.tenant_id AND id = b.prev_run_id OFFSET 0) AS p
            WHERE p.session_id = page.session_id AND b.finished_at IS NOT NULL AND NOT b.started
        )
        SELECT 1 FROM before WHERE finished_at IS NULL)
    RETURNING runs.id
)
SELECT (SELECT count(*) FROM gone) AS released, (SELECT count(*) FROM page) AS looked_at, last.tenant_id, last.prev_run_id
FROM (SELECT 1) AS one LEFT JOIN (
    SELECT tenant_id, prev_run_id FROM page ORDER BY tenant_id DESC, prev_run_id DESC LIMIT 1) AS last ON true
