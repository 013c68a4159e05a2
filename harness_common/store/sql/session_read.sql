-- A session with the states of its runs; with the tenant's slots held (slots_hold.sql) no run starts in it meanwhile.
SELECT s.*, (SELECT array_agg(DISTINCT r.status) FROM runs r WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id) AS statuses
FROM sessions s WHERE s.tenant_id = %(tenant_id)s AND s.id = %(id)s
