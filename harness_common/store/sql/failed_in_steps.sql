-- How many attempts failed at each step in a range of a run's steps.
SELECT step, count(*)::int AS failed FROM events
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND type = 'step.failed' AND step BETWEEN %(first)s AND %(last)s GROUP BY step
