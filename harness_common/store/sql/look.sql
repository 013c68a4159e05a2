-- What the scheduler's loops may have to do, in one cheap read: each flag lets a loop run.
SELECT extract(epoch FROM (SELECT min(wake_at) FROM runs WHERE wake_at IS NOT NULL) - clock_timestamp())::float8 AS due_in_s,
       EXISTS (SELECT 1 FROM runs WHERE status = 'queued' AND held_for IS NULL) AS queued,
       EXISTS (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'key') AS keyed,
       EXISTS (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'session') AS behind,
       EXISTS (SELECT 1 FROM workers WHERE died_at IS NULL AND seen_at < clock_timestamp() - make_interval(secs => %(lease_s)s)) AS stale,
       EXISTS (SELECT 1 FROM runs r WHERE r.claim_id IS NOT NULL AND NOT EXISTS (
                   SELECT 1 FROM workers w WHERE w.incarnation = r.claimed_by AND w.died_at IS NULL)) AS orphaned,
       (SELECT count(*) FROM tenant_slots WHERE granted = 0 AND max_running > 0) AS ungranted,
       (SELECT coalesce(sum(concurrency), 0) FROM workers
        WHERE died_at IS NULL AND stopping_at IS NULL AND seen_at > clock_timestamp() - make_interval(secs => %(lease_s)s)) AS capacity,
       (SELECT coalesce(sum(granted), 0) FROM tenant_slots) AS granted,
       (SELECT max_running FROM platform WHERE name = 'global') AS all_running,
       EXISTS (SELECT 1 FROM runs c JOIN runs p ON p.tenant_id = c.tenant_id AND p.id = c.parent_run_id
               WHERE c.parent_run_id IS NOT NULL AND c.finished_at IS NULL AND NOT c.cancel_requested
                 AND (p.cancel_requested OR p.finished_at IS NOT NULL)) AS forsaken,
       coalesce((SELECT max(queue_age_s) FROM workers WHERE died_at IS NULL), 0) AS queue_age_s,
       extract(epoch FROM least(
           (SELECT min(next_at) FROM schedules WHERE next_at IS NOT NULL),
           CASE WHEN EXISTS (SELECT 1 FROM schedules s WHERE s.waiting > 0 AND s.paused_at IS NULL AND NOT EXISTS (
               SELECT 1 FROM runs r WHERE r.tenant_id = s.tenant_id AND r.id = ANY(s.open_runs) AND r.finished_at IS NULL))
           THEN clock_timestamp() END) - clock_timestamp())::float8 AS fire_in_s,
       extract(epoch FROM (SELECT min(next_at) FROM webhook_deliveries WHERE status = 'pending') - clock_timestamp())::float8 AS deliver_in_s,
       clock_timestamp() AS now
