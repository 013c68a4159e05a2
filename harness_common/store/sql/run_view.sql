-- One run as the API shows it.
SELECT r.*, w.name AS worker_name, coalesce(a.spec->>'model' LIKE 'scripted/%%', false) AS scripted,
       coalesce(jsonb_typeof(coalesce(r.overrides->'output_schema', a.spec->'output_schema')) = 'object', false) AS structured
FROM runs r
LEFT JOIN workers w ON w.incarnation = r.claimed_by
LEFT JOIN agents a ON a.tenant_id = r.tenant_id AND a.id = r.agent_id
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s
