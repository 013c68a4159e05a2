-- What a run's session remembers, and what the run was asked.
SELECT r.tenant_id, s.memory_summary, r.input FROM runs r JOIN sessions s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s
