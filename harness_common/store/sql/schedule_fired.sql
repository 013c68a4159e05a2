-- Record what became of a firing and move its schedule on. No row back: that firing was decided before, and nothing is written.
WITH firing AS (
    INSERT INTO schedule_firings AS f (tenant_id, schedule_id, at, run_id, outcome, detail)
    VALUES (%(tenant_id)s, %(id)s, %(at)s, %(run_id)s, %(outcome)s, %(detail)s::jsonb)
    ON CONFLICT (tenant_id, schedule_id, at) DO UPDATE
        SET run_id = excluded.run_id, outcome = excluded.outcome, detail = f.detail || excluded.detail
        WHERE f.outcome = 'waiting' AND %(was_waiting)s
    RETURNING 1
)
UPDATE schedules SET last_at = %(last_at)s, next_at = %(next_at)s,
    firings = firings + %(firings)s, waiting = waiting + %(waiting)s, open_runs = %(open_runs)s::uuid[]
WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND EXISTS (SELECT 1 FROM firing)
RETURNING id
