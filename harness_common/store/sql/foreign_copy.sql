-- Copy a thread up to a checkpoint (all of it without one), as a fork does; what tasks gave after that checkpoint is left out.
WITH copied AS (
    INSERT INTO foreign_checkpoints (tenant_id, thread, ns, checkpoint_id, parent_id, run_key, kind, snapshot, payload)
    SELECT tenant_id, %(to)s, ns, checkpoint_id, parent_id, run_key, kind, snapshot, payload FROM foreign_checkpoints
    WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s AND (%(head)s::text IS NULL OR checkpoint_id <= %(head)s)
    ON CONFLICT DO NOTHING
)
INSERT INTO foreign_writes (tenant_id, thread, ns, checkpoint_id, task_id, idx, task_path, channel, kind, snapshot)
SELECT tenant_id, %(to)s, ns, checkpoint_id, task_id, idx, task_path, channel, kind, snapshot FROM foreign_writes
WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s AND (%(head)s::text IS NULL OR checkpoint_id < %(head)s)
ON CONFLICT DO NOTHING
