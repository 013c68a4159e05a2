-- What the leading scheduler shows of all runs: every count stops at `most` and goes by an index of the few rows that are meant.
SELECT
    jsonb_build_object(
        'running', (SELECT count(*) FROM (SELECT 1 FROM runs WHERE status = 'running' LIMIT %(most)s) AS found),
        'queued', q.admission + q.key + q.session) || d.waiting AS runs,
    jsonb_build_object('admission', q.admission, 'key', q.key, 'session', q.session) AS queued,
    q.oldest_queued_s, greatest(0, extract(epoch FROM clock_timestamp() - d.due_at))::float8 AS overdue_s,
    a.approvals, a.oldest_approval_s,
    (SELECT count(*) FROM (SELECT 1 FROM tool_calls WHERE status = 'unknown' LIMIT %(most)s) AS found) AS unknown_effects,
    (SELECT count(*) FROM (SELECT 1 FROM throttles WHERE until > clock_timestamp() LIMIT %(most)s) AS found) AS throttles,
    (SELECT jsonb_object_agg(of, n) FROM (
        SELECT CASE WHEN tool LIKE 'model:%%' THEN 'model' ELSE 'tool' END AS of, count(*) AS n FROM (
            SELECT tool FROM tool_breakers WHERE state = 'open' LIMIT %(most)s) AS found GROUP BY 1) AS kinds) AS breakers,
    (SELECT count(*) FROM (SELECT 1 FROM webhooks WHERE disabled_at IS NOT NULL LIMIT %(most)s) AS found) AS webhooks_disabled,
    (SELECT count(*) FROM (SELECT 1 FROM webhook_deliveries WHERE status = 'pending' LIMIT %(most)s) AS found) AS deliveries_pending,
    w.workers, w.places, w.held
FROM
    (SELECT (SELECT count(*) FROM (SELECT 1 FROM runs WHERE status = 'queued' AND held_for IS NULL LIMIT %(most)s) AS found) AS admission,
            (SELECT count(*) FROM (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'key' LIMIT %(most)s) AS found) AS key,
            (SELECT count(*) FROM (SELECT 1 FROM runs WHERE status = 'queued' AND held_for = 'session' LIMIT %(most)s) AS found) AS session,
            (SELECT extract(epoch FROM clock_timestamp() - min(queued_at))::float8 FROM (
                SELECT queued_at FROM runs WHERE status = 'queued' AND held_for IS NULL LIMIT %(most)s) AS found) AS oldest_queued_s) AS q,
    -- Whatever waits for a time stands in the index of what is due.
    (SELECT (SELECT coalesce(jsonb_object_agg(status, n), '{}') FROM (
                SELECT status, count(*) AS n FROM (SELECT status FROM runs WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT %(most)s) AS found
                WHERE status NOT IN ('running', 'queued') GROUP BY status) AS states) AS waiting,
            (SELECT min(wake_at) FROM runs WHERE wake_at IS NOT NULL) AS due_at) AS d,
    (SELECT count(*) AS approvals, extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest_approval_s
     FROM (SELECT created_at FROM approvals WHERE status = 'pending' LIMIT %(most)s) AS found) AS a,
    (SELECT count(*) AS workers, coalesce(sum(concurrency), 0)::int AS places, coalesce(sum(held), 0)::int AS held FROM workers
     WHERE died_at IS NULL AND stopping_at IS NULL AND seen_at > clock_timestamp() - make_interval(secs => %(lease_s)s)) AS w
