-- Let runs go that waited for the run before theirs in the session, which has ended; one with a concurrency key waits for that next.
-- Looks at some after a cursor; answers with the last one looked at.
WITH page AS MATERIALIZED (
    SELECT tenant_id, prev_run_id, id FROM runs WHERE status = 'queued' AND held_for = 'session'
      AND (tenant_id, prev_run_id) > (%(tenant_id)s::uuid, %(prev)s::uuid)
    ORDER BY tenant_id, prev_run_id LIMIT %(most)s
), gone AS (
    UPDATE runs SET held_for = CASE WHEN runs.concurrency_key IS NOT NULL THEN 'key' END
    FROM page JOIN runs prev ON prev.tenant_id = page.tenant_id AND prev.id = page.prev_run_id
    WHERE runs.tenant_id = page.tenant_id AND runs.id = page.id AND runs.status = 'queued' AND runs.held_for = 'session'
      AND prev.status IN ('succeeded', 'failed', 'cancelled')
    RETURNING runs.id
)
SELECT (SELECT count(*) FROM gone) AS released, (SELECT count(*) FROM page) AS looked_at, last.tenant_id, last.prev_run_id
FROM (SELECT 1) AS one LEFT JOIN (
    SELECT tenant_id, prev_run_id FROM page ORDER BY tenant_id DESC, prev_run_id DESC LIMIT 1) AS last ON true
