-- Move a schedule on without a firing.
UPDATE schedules SET last_at = %(last_at)s, next_at = %(next_at)s WHERE tenant_id = %(tenant_id)s AND id = %(id)s
