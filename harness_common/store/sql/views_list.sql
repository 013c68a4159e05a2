-- The saved views of a page: one's own, and those that others of the tenant share.
SELECT id, name, query, created_by, shared, created_at FROM console_views
WHERE tenant_id = %(tenant_id)s AND page = %(page)s AND (created_by = %(by)s OR shared) ORDER BY name, id LIMIT 100
