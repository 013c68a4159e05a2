-- The ages that a tenant has set for itself; no row when it has set none.
SELECT events_days, checkpoints_days, artifacts_days, runs_days, changed_at, changed_by FROM retention WHERE tenant_id = %(tenant_id)s
