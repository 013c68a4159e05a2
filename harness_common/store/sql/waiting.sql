-- Why a queued run waits and how many stand before it (counted up to 1,000): the same facts by which the scheduler decides.
SELECT r.held_for, r.queue, r.started, r.queued_at, r.concurrency_key, least(r.concurrency_max, key.strictest) AS concurrency_max,
       s.running, s.max_running, s.starts_per_s, coalesce(s.starts_tat > clock_timestamp() + interval '20 ms', false) AS starts_paid_ahead,
       coalesce(p.max_running, %(all_running)s) AS all_running, platform_running() AS all_run,
       p.starts_per_s AS all_starts_per_s, coalesce(p.starts_tat > clock_timestamp() + interval '20 ms', false) AS all_starts_paid_ahead,
       coalesce(work.places, 0) AS places, coalesce(work.held, 0) AS places_taken, work.places IS NOT NULL AS served,
       key.running AS key_running,
       ahead.id AS ahead_run_id, ahead.status AS ahead_status,
       CASE r.held_for
           WHEN 'key' THEN (
               SELECT count(*) FROM (
                   SELECT 1 FROM runs k WHERE k.tenant_id = r.tenant_id AND k.concurrency_key = r.concurrency_key
                     AND k.status = 'queued' AND k.held_for = 'key' AND k.queued_at < r.queued_at LIMIT 1001) AS found)
           WHEN 'session' THEN (
               SELECT count(*) FROM (
                   SELECT 1 FROM runs b WHERE b.tenant_id = r.tenant_id AND b.session_id = r.session_id AND b.id < r.id
                     AND b.finished_at IS NULL LIMIT 1001) AS found)
           ELSE (
               -- Streams are those of admission: per queue, started before or not.
               SELECT sum(n) FROM (
                   WITH RECURSIVE stream AS (
                       (SELECT queue, started FROM runs q WHERE q.tenant_id = r.tenant_id AND q.status = 'queued' AND q.held_for IS NULL
                        ORDER BY queue, started LIMIT 1)
                       UNION ALL
                       SELECT n.queue, n.started FROM stream CROSS JOIN LATERAL (
                           SELECT q.queue, q.started FROM runs q WHERE q.tenant_id = r.tenant_id AND q.status = 'queued' AND q.held_for IS NULL
                             AND (q.queue, q.started) > (stream.queue, stream.started) ORDER BY q.queue, q.started LIMIT 1) AS n
                   )
                   SELECT (SELECT count(*) FROM (
                       SELECT 1 FROM runs q WHERE q.tenant_id = r.tenant_id AND q.queue = stream.queue AND q.started = stream.started
                         AND q.status = 'queued' AND q.held_for IS NULL AND (q.priority, q.queued_at) < (r.priority, r.queued_at)
                       LIMIT 1001) AS found) AS n FROM stream) AS streams)
       END::int AS before, clock_timestamp() AS now
FROM runs r
JOIN tenant_slots s ON s.tenant_id = r.tenant_id
LEFT JOIN platform p ON p.name = 'global'
LEFT JOIN LATERAL (
    -- Whom it waits for in its session: the nearest before it that is not over (release_sessions.sql).
    WITH RECURSIVE before AS (
        SELECT b.id, b.prev_run_id, b.started, b.finished_at, b.status FROM runs b
        WHERE r.held_for = 'session' AND b.tenant_id = r.tenant_id AND b.id = r.prev_run_id AND b.session_id = r.session_id
        UNION ALL
        SELECT b.id, b.prev_run_id, b.started, b.finished_at, b.status
        FROM before CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = r.tenant_id AND id = before.prev_run_id OFFSET 0) AS b
        WHERE b.session_id = r.session_id AND before.finished_at IS NOT NULL AND NOT before.started
    )
    SELECT id, status FROM before WHERE finished_at IS NULL) AS ahead ON true
LEFT JOIN LATERAL (
    SELECT count(*)::int AS running, min(found.concurrency_max) AS strictest FROM (
        SELECT k.concurrency_max FROM runs k WHERE k.tenant_id = r.tenant_id AND k.concurrency_key = r.concurrency_key
          AND (k.status = 'running' OR (k.status = 'queued' AND k.held_for IS NULL)) LIMIT r.concurrency_max) AS found
    ) AS key ON r.held_for = 'key'
LEFT JOIN LATERAL (
    SELECT sum(concurrency) AS places, sum(held) AS held FROM workers
    WHERE died_at IS NULL AND stopping_at IS NULL AND seen_at > clock_timestamp() - make_interval(secs => %(lease_s)s) AND r.queue = ANY(queues)) AS work ON true
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s AND r.status = 'queued'
