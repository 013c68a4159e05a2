-- Let a rotated key live for the overlap only.
UPDATE api_keys SET expires_at = least(coalesce(expires_at, 'infinity'), clock_timestamp() + make_interval(secs => %(overlap_s)s))
WHERE tenant_id = %(tenant_id)s AND id = %(id)s
