-- A run's checkpoints after a step, in order, with the names of their workers.
SELECT c.step, c.version, c.kind, c.delta, c.snapshot IS NOT NULL AS has_snapshot, c.worker, w.name AS worker_name, c.fence, c.attempt,
       c.started_at, c.created_at
FROM checkpoints c LEFT JOIN workers w ON w.incarnation = c.worker
WHERE c.tenant_id = %(tenant_id)s AND c.run_id = %(run_id)s AND c.step > %(after)s ORDER BY c.step LIMIT %(limit)s
