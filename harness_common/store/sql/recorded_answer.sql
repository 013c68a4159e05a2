-- What the model answered in one step of a run, with the summary of that answer (a fork has none of its source's steps), and
-- whether the model answered again later.
SELECT m.body::text AS body, e.payload, EXISTS (
    SELECT 1 FROM messages l WHERE l.tenant_id = m.tenant_id AND l.run_id = m.run_id AND l.n > m.n AND l.role = 'assistant') AS more
FROM messages m
LEFT JOIN events e ON e.tenant_id = m.tenant_id AND e.run_id = m.run_id AND e.step = m.step AND e.type = 'model.answered'
WHERE m.tenant_id = %(tenant_id)s AND m.run_id = %(run_id)s AND m.step = %(step)s AND m.role = 'assistant'
LIMIT 1
