-- Drop what is past its time, up to `most` of each: idempotency keys, worker rows that nobody needs, old firings and deliveries.
-- What is past is compared again at the row itself: a key that was taken anew meanwhile stays.
WITH keys AS (DELETE FROM idempotency_keys WHERE created_at < clock_timestamp() - make_interval(secs => %(key_ttl_s)s)
              AND (tenant_id, route, key) IN (
                  SELECT tenant_id, route, key FROM idempotency_keys WHERE created_at < clock_timestamp() - make_interval(secs => %(key_ttl_s)s)
                  ORDER BY created_at LIMIT %(most)s)
              AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s) RETURNING 1),
     gone AS (DELETE FROM workers w WHERE died_at < clock_timestamp() - interval '1 hour'
              AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.claimed_by = w.incarnation AND r.claim_id IS NOT NULL)
              AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s) RETURNING 1),
     fired AS (DELETE FROM schedule_firings WHERE outcome <> 'waiting'
               AND (tenant_id, schedule_id, at) IN (
                   SELECT tenant_id, schedule_id, at FROM schedule_firings
                   WHERE created_at < clock_timestamp() - make_interval(days => %(firings_days)s) AND outcome <> 'waiting'
                   ORDER BY created_at LIMIT %(most)s)
               AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s) RETURNING 1),
     told AS (DELETE FROM webhook_deliveries WHERE (tenant_id, id) IN (
                  SELECT tenant_id, id FROM webhook_deliveries WHERE created_at < clock_timestamp() - interval '30 days'
                  ORDER BY created_at LIMIT %(most)s)
              AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s) RETURNING 1)
SELECT (SELECT count(*) FROM told) AS deliveries, (SELECT count(*) FROM keys) AS keys, (SELECT count(*) FROM gone) AS workers, (SELECT count(*) FROM fired) AS firings
