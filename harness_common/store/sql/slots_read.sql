-- Every tenant's slots, with how many runs wait (counted up to 1,000).
SELECT s.tenant_id, s.running, s.max_running, s.granted, s.last_admitted_at,
       (SELECT count(*) FROM (SELECT 1 FROM runs q WHERE q.tenant_id = s.tenant_id AND q.status = 'queued' AND q.held_for IS NULL LIMIT 1000) AS w) AS waiting,
       coalesce(s.last_admitted_at > clock_timestamp() - interval '1 minute', false) AS recent
FROM tenant_slots s ORDER BY s.tenant_id
