-- Set a tenant's ages.
INSERT INTO retention (tenant_id, events_days, checkpoints_days, artifacts_days, runs_days, changed_by)
VALUES (%(tenant_id)s, %(events_days)s, %(checkpoints_days)s, %(artifacts_days)s, %(runs_days)s, %(by)s)
ON CONFLICT (tenant_id) DO UPDATE SET events_days = excluded.events_days, checkpoints_days = excluded.checkpoints_days,
    artifacts_days = excluded.artifacts_days, runs_days = excluded.runs_days, changed_at = clock_timestamp(), changed_by = excluded.changed_by
