-- Delayed runs of one tenant whose time has come.
SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND status = 'delayed' AND wake_at <= %(now)s
ORDER BY wake_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
