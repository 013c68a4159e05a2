-- Hold a schedule until the transaction ends: whoever decides about its firings goes one by one.
SELECT id, name, spec, next_at, last_at, paused_at, firings, waiting
FROM schedules WHERE tenant_id = %(tenant_id)s AND id = %(id)s FOR UPDATE
