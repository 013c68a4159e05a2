-- The failed attempts of a run's steps with their reasons, in order: what a step that was tried again has behind it.
SELECT seq, step, at, payload FROM events
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND type = 'step.failed' AND seq > %(after)s
ORDER BY seq LIMIT %(limit)s
