-- With the schedule held: which of its runs are not over, and which firing waits longest. A statement of its own: it sees what is then.
SELECT clock_timestamp() AS now,
       ARRAY(SELECT r.id FROM runs r WHERE r.tenant_id = s.tenant_id AND r.id = ANY(s.open_runs) AND r.finished_at IS NULL ORDER BY r.id) AS going,
       CASE WHEN s.waiting > 0 THEN (
           SELECT min(f.at) FROM schedule_firings f
           WHERE f.tenant_id = s.tenant_id AND f.schedule_id = s.id AND f.outcome = 'waiting') END AS waiting_at
FROM schedules s WHERE s.tenant_id = %(tenant_id)s AND s.id = %(id)s
