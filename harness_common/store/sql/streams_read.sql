-- What waits for admission: per tenant, queue and whether it was started before, how many (up to one more than could be let in: `most`, or
-- what is free of `slots`), first who should go first.
-- A loose index scan: its cost grows with the number of tenants that wait, not with the runs. `nth` counts the streams after the cursor.
-- Runs that cannot be read are left out: nobody is offered a slot for them.
WITH RECURSIVE stream AS (
    (SELECT tenant_id, queue, started, 1 AS nth FROM runs WHERE status = 'queued' AND held_for IS NULL
       AND (tenant_id, queue, started) > (%(tenant_id)s::uuid, %(queue)s::text, %(started)s::boolean)
     ORDER BY tenant_id, queue, started LIMIT 1)
    UNION ALL
    SELECT n.tenant_id, n.queue, n.started, s.nth + 1 FROM stream s CROSS JOIN LATERAL (
        SELECT r.tenant_id, r.queue, r.started FROM runs r WHERE r.status = 'queued' AND r.held_for IS NULL
          AND (r.tenant_id, r.queue, r.started) > (s.tenant_id, s.queue, s.started)
        ORDER BY r.tenant_id, r.queue, r.started LIMIT 1) AS n
)
SELECT s.tenant_id, s.queue, s.started, s.nth, w.waiting
FROM (SELECT * FROM stream LIMIT %(streams)s) AS s
LEFT JOIN LATERAL (
    SELECT priority, queued_at FROM runs r
    WHERE r.tenant_id = s.tenant_id AND r.queue = s.queue AND r.started = s.started AND r.status = 'queued' AND r.held_for IS NULL
      AND NOT (r.id = ANY(%(skipped)s::uuid[]))
    ORDER BY priority, queued_at LIMIT 1) AS head ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting FROM (
        SELECT 1 FROM runs r
        WHERE r.tenant_id = s.tenant_id AND r.queue = s.queue AND r.started = s.started AND r.status = 'queued' AND r.held_for IS NULL
          AND NOT (r.id = ANY(%(skipped)s::uuid[]))
        LIMIT (SELECT least(%(most)s::bigint, greatest(0, %(slots)s::bigint - coalesce(sum(running), 0))) + 1 FROM tenant_slots)) AS found) AS w
ORDER BY head.priority, head.queued_at
