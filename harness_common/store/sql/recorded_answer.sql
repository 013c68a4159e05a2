-- What the model answered in one step of a run, with the summary of that answer.
SELECT m.body::text AS body, e.payload FROM messages m
JOIN events e ON e.tenant_id = m.tenant_id AND e.run_id = m.run_id AND e.step = m.step AND e.type = 'model.answered'
WHERE m.tenant_id = %(tenant_id)s AND m.run_id = %(run_id)s AND m.step = %(step)s AND m.role = 'assistant'
LIMIT 1
