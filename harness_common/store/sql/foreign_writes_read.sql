-- What tasks gave after a checkpoint.
SELECT task_id, idx, task_path, channel, kind, snapshot FROM foreign_writes
WHERE tenant_id = %(tenant_id)s AND thread = %(thread)s AND ns = %(ns)s AND checkpoint_id = %(checkpoint_id)s
ORDER BY task_path, task_id, idx
