-- Schedules with something to decide: tenants take turns, so that one with thousands does not go before the others' few. None of
-- those that are put off (`later`): a firing that waits has no time of its own to move.
SELECT tenant_id, id FROM (
    SELECT tenant_id, id, next_at, row_number() OVER (PARTITION BY tenant_id ORDER BY next_at) AS turn
    FROM schedules WHERE next_at <= clock_timestamp() AND NOT (id = ANY(%(later)s::uuid[]))
    UNION ALL
    SELECT s.tenant_id, s.id, NULL, 1
    FROM schedules s WHERE s.waiting > 0 AND s.paused_at IS NULL AND NOT (s.id = ANY(%(later)s::uuid[])) AND NOT EXISTS (
        SELECT 1 FROM runs r WHERE r.tenant_id = s.tenant_id AND r.id = ANY(s.open_runs) AND r.finished_at IS NULL)) AS due
ORDER BY turn, next_at LIMIT %(batch)s
