-- Delete facts whose time is over, some at a time, by the leader of this term.
WITH over AS (
    DELETE FROM memories WHERE (tenant_id, id) IN (
        SELECT tenant_id, id FROM memories WHERE expires_at <= clock_timestamp() LIMIT 10000)
      AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
    RETURNING 1)
SELECT count(*) AS facts FROM over
