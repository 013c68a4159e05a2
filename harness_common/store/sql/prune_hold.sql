-- Hold one finished run with its session, unless somebody holds it.
SELECT r.id, r.session_id FROM runs r JOIN sessions s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s AND r.finished_at IS NOT NULL
FOR UPDATE OF r, s SKIP LOCKED
