-- A tenant with its limit and what it has going.
SELECT t.tenant_id, t.name, s.max_running, s.running,
       (SELECT count(*) FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued') AS queued
FROM tenants t JOIN tenant_slots s ON s.tenant_id = t.tenant_id WHERE t.tenant_id = %(tenant_id)s
