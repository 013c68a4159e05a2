-- What the model answered in a range of a run's steps, without the answers themselves.
SELECT step, payload FROM events
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND type = 'model.answered' AND step BETWEEN %(first)s AND %(last)s
