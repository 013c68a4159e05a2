-- Look at a schedule that cannot be decided about again later, so that it does not hold up the others.
UPDATE schedules SET next_at = clock_timestamp() + make_interval(secs => %(again_s)s)
WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND next_at <= clock_timestamp()
  AND EXISTS (SELECT 1 FROM leader WHERE name = 'scheduler' AND term = %(term)s)
