-- Read one ledger row.
SELECT to_jsonb(c) AS call FROM tool_calls c
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
