-- Keep what a task gave: for a run by its owner alone (INV6). A negative `idx` is a slot that is written anew, the rest is written once.
WITH allowed AS (
    SELECT 1 WHERE %(run_id)s::uuid IS NULL OR EXISTS (
        SELECT 1 FROM runs WHERE runs.tenant_id = %(tenant_id)s AND id = %(run_id)s AND fence = %(fence)s AND claim_id = %(claim_id)s)
), written AS (
    INSERT INTO foreign_writes (tenant_id, thread, ns, checkpoint_id, task_id, idx, task_path, channel, kind, snapshot)
    SELECT %(tenant_id)s, %(thread)s, %(ns)s, %(checkpoint_id)s, %(task_id)s, w.idx, %(task_path)s, w.channel, w.kind, decode(w.data, 'base64')
    FROM allowed, jsonb_to_recordset(%(writes)s::jsonb) AS w (idx int, channel text, kind text, data text)
    ON CONFLICT (tenant_id, thread, ns, checkpoint_id, task_id, idx) DO UPDATE
        SET channel = excluded.channel, kind = excluded.kind, snapshot = excluded.snapshot WHERE foreign_writes.idx < 0
)
SELECT EXISTS (SELECT 1 FROM allowed) AS allowed, set_config('synchronous_commit', 'on', true)
