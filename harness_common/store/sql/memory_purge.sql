-- Delete facts whose time is over, up to `most`, by the leader of this term. One that was told anew meanwhile stays.
WITH over AS (
    DELETE FROM memories WHERE expires_at <= clock_timestamp() AND (tenant_id, id) IN (
        SELECT tenant_id, id FROM memories WHERE expires_at <= clock_timestamp() LIMIT %(most)s)
      AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
    RETURNING 1)
SELECT count(*) AS facts FROM over
