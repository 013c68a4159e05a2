-- What is left of a user or a tenant (a null user): sessions, and blobs that are not deleted yet.
SELECT EXISTS (SELECT 1 FROM sessions s WHERE s.tenant_id = %(tenant_id)s AND (%(user_id)s::text IS NULL OR s.user_id = %(user_id)s::text)) AS sessions,
       EXISTS (SELECT 1 FROM blob_garbage g WHERE g.tenant_id = %(tenant_id)s) AS blobs
