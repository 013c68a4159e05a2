-- The hosts to which a tenant's requests may and may not go.
SELECT allow, deny, changed_at, changed_by FROM egress_rules WHERE tenant_id = %(tenant_id)s
