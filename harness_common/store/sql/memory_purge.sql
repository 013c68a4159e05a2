-- Delete facts whose time is over, some at a time.
DELETE FROM memories WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM memories WHERE expires_at <= clock_timestamp()
      AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s) LIMIT 10000)
RETURNING id
