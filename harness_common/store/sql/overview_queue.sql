-- The queued runs of a tenant by what holds them, each counted up to 10,000, with the one that is first.
SELECT held.held_for, counted.runs::int AS runs, first.id, first.queued_at
FROM (VALUES (NULL::text), ('key'), ('session')) AS held(held_for)
CROSS JOIN LATERAL (
    SELECT count(*) AS runs FROM (
        (SELECT 1 FROM runs r WHERE held.held_for IS NULL AND r.tenant_id = %(tenant_id)s AND r.status = 'queued' AND r.held_for IS NULL LIMIT 10000)
        UNION ALL
        (SELECT 1 FROM runs r WHERE held.held_for = 'key' AND r.tenant_id = %(tenant_id)s AND r.status = 'queued' AND r.held_for = 'key' LIMIT 10000)
        UNION ALL
        (SELECT 1 FROM runs r WHERE held.held_for = 'session' AND r.tenant_id = %(tenant_id)s AND r.status = 'queued' AND r.held_for = 'session' LIMIT 10000)
    ) AS found) AS counted
CROSS JOIN LATERAL (
    (SELECT r.id, r.queued_at FROM runs r WHERE held.held_for IS NULL AND r.tenant_id = %(tenant_id)s AND r.status = 'queued' AND r.held_for IS NULL
     ORDER BY r.queue, r.started, r.priority, r.queued_at LIMIT 1)
    UNION ALL
    (SELECT r.id, r.queued_at FROM runs r WHERE held.held_for = 'key' AND r.tenant_id = %(tenant_id)s AND r.status = 'queued' AND r.held_for = 'key'
     ORDER BY r.concurrency_key, r.queued_at LIMIT 1)
    UNION ALL
    (SELECT r.id, r.queued_at FROM runs r WHERE held.held_for = 'session' AND r.tenant_id = %(tenant_id)s AND r.status = 'queued' AND r.held_for = 'session'
     LIMIT 1)) AS first
