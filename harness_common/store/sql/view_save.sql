-- Save a view of a page under a name; one's own of the same name is replaced.
INSERT INTO console_views (tenant_id, page, name, query, created_by, shared)
VALUES (%(tenant_id)s, %(page)s, %(name)s, %(query)s, %(by)s, %(shared)s)
ON CONFLICT (tenant_id, page, created_by, name) DO UPDATE SET query = excluded.query, shared = excluded.shared
RETURNING id
