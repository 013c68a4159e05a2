-- Forget threads, or the checkpoints that frameworks' runs of these keys made.
WITH gone AS (
    DELETE FROM foreign_checkpoints WHERE tenant_id = %(tenant_id)s
      AND (thread = ANY(%(threads)s) OR run_key = ANY(%(run_keys)s))
      AND (NOT %(keep_latest)s OR checkpoint_id < (SELECT max(k.checkpoint_id) FROM foreign_checkpoints k
            WHERE k.tenant_id = foreign_checkpoints.tenant_id AND k.thread = foreign_checkpoints.thread AND k.ns = foreign_checkpoints.ns))
    RETURNING tenant_id, thread, ns, checkpoint_id
)
DELETE FROM foreign_writes w USING gone
WHERE w.tenant_id = gone.tenant_id AND w.thread = gone.thread AND w.ns = gone.ns AND w.checkpoint_id = gone.checkpoint_id
