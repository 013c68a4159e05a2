-- Every tenant's slots, with whether somebody waits.
SELECT s.tenant_id, s.running, s.max_running, s.granted,
       EXISTS (SELECT 1 FROM runs q WHERE q.tenant_id = s.tenant_id AND q.status = 'queued') AS waiting,
       coalesce(s.last_admitted_at > clock_timestamp() - interval '1 minute', false) AS recent
FROM tenant_slots s ORDER BY s.tenant_id
