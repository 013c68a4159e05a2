-- Note that an erasure is over, and forget whom it was about.
UPDATE erasures SET phase = 'done', user_id = NULL, counts = %(counts)s::jsonb, finished_at = clock_timestamp()
WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND finished_at IS NULL RETURNING id
