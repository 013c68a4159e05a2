-- Hold a session and its tenant's slots (tenant first), so that no run starts in it meanwhile.
SELECT s.*, (SELECT array_agg(DISTINCT r.status) FROM runs r WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id) AS statuses
FROM (SELECT tenant_id FROM tenant_slots WHERE tenant_id = %(tenant_id)s FOR UPDATE) AS slot
JOIN sessions s ON s.tenant_id = slot.tenant_id AND s.id = %(id)s
