-- Close a session.
UPDATE sessions SET closed_at = clock_timestamp() WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND closed_at IS NULL
