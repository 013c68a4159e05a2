-- A run's own messages after one of them, in order.
SELECT n, step, role, trust, body FROM messages
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND n > %(after)s ORDER BY n LIMIT %(limit)s
