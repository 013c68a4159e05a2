-- Keep a checkpoint of another framework: for a run by its owner alone (INV6); no row back when another owns it.
INSERT INTO foreign_checkpoints (tenant_id, thread, ns, checkpoint_id, parent_id, run_key, kind, snapshot, payload)
SELECT %(tenant_id)s, %(thread)s, %(ns)s, %(checkpoint_id)s, %(parent_id)s::text, %(run_key)s::text, %(kind)s, %(snapshot)s::bytea, %(payload)s::jsonb
WHERE %(run_id)s::uuid IS NULL OR EXISTS (
    SELECT 1 FROM runs WHERE runs.tenant_id = %(tenant_id)s AND id = %(run_id)s AND fence = %(fence)s AND claim_id = %(claim_id)s)
ON CONFLICT (tenant_id, thread, ns, checkpoint_id) DO UPDATE
    SET snapshot = excluded.snapshot, payload = excluded.payload, kind = excluded.kind, run_key = excluded.run_key
RETURNING checkpoint_id, set_config('synchronous_commit', 'on', true)
