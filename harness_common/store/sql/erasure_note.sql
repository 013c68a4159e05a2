-- Note how far an erasure is.
UPDATE erasures SET phase = %(phase)s, counts = %(counts)s::jsonb WHERE tenant_id = %(tenant_id)s AND id = %(id)s
