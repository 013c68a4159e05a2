-- One checkpoint of a thread, or its newest; `newest` takes any.
SELECT checkpoint_id, parent_id, kind, snapshot, payload FROM foreign_checkpoints
WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s AND ns = %(ns)s
  AND (%(checkpoint_id)s::text IS NULL OR checkpoint_id = %(checkpoint_id)s)
ORDER BY checkpoint_id DESC LIMIT 1
