-- Delete a saved view of one's own.
DELETE FROM console_views WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND created_by = %(by)s RETURNING name
