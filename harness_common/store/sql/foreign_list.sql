-- Checkpoints, newest first; of one thread or of all, before one, of one namespace or of all.
SELECT thread, ns, checkpoint_id, parent_id, kind, snapshot, payload FROM foreign_checkpoints
WHERE tenant_id = %(tenant_id)s
  AND (%(thread)s::text IS NULL OR thread = %(thread)s)
  AND (%(ns)s::text IS NULL OR ns = %(ns)s)
  AND (%(checkpoint_id)s::text IS NULL OR checkpoint_id = %(checkpoint_id)s)
  AND (%(before)s::text IS NULL OR checkpoint_id < %(before)s)
ORDER BY checkpoint_id DESC
