-- Runs whose doorbell was not answered in time: note another ring. Only by the leader of this term.
UPDATE runs SET rings = rings + 1, rung_at = clock_timestamp(),
    wake_at = clock_timestamp() + make_interval(secs => least(%(longest_s)s, %(first_s)s * power(2, least(rings, 16))))
WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM runs
    WHERE wake_at <= clock_timestamp() AND status = 'running' AND claim_id IS NULL
    ORDER BY wake_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED)
  AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
RETURNING tenant_id, id, version, queue, priority, rings, trace_id, deaths, step
