-- An erasure of the same that is under way; held with the asking tenant's slots, two requests make one.
SELECT id FROM erasures WHERE tenant_id = %(tenant_id)s AND finished_at IS NULL AND subject = %(subject)s
  AND target_tenant = %(target_tenant)s AND user_id IS NOT DISTINCT FROM %(user_id)s::text
