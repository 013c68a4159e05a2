-- Make an empty session.
INSERT INTO sessions (tenant_id, title, user_id, metadata)
VALUES (%(tenant_id)s, %(title)s, %(user_id)s, %(metadata)s::jsonb)
RETURNING *, NULL::text[] AS statuses
