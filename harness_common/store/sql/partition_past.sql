-- Whether nothing that a week of one kind holds is to be kept: each of its runs has lost it already, or is past its age and needed by nobody.
SELECT NOT EXISTS (
    SELECT 1 FROM tenants t LEFT JOIN retention a ON a.tenant_id = t.tenant_id
    CROSS JOIN LATERAL (SELECT least(
        CASE %(bit)s::int WHEN 1 THEN coalesce(a.events_days, %(events_days)s::int) ELSE coalesce(a.checkpoints_days, %(checkpoints_days)s::int) END,
        coalesce(a.runs_days, %(runs_days)s::int)) AS days) AS age
    CROSS JOIN LATERAL (
        SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.id >= %(low)s AND r.id < %(high)s AND r.pruned & %(bit)s::int = 0
          AND (NOT coalesce(r.finished_at < now() - make_interval(days => age.days), false)
               -- The same as in prune_free.sql.
               OR EXISTS (SELECT 1 FROM runs f WHERE f.tenant_id = r.tenant_id AND f.forked_from = r.id AND f.pruned & %(bit)s::int = 0)
               OR EXISTS (SELECT 1 FROM runs p WHERE p.tenant_id = r.tenant_id AND p.id = r.parent_run_id AND p.finished_at IS NULL)
               OR EXISTS (SELECT 1 FROM runs c WHERE c.tenant_id = r.tenant_id AND c.parent_run_id = r.id AND c.finished_at IS NULL)
               OR EXISTS (SELECT 1 FROM runs l WHERE l.tenant_id = r.tenant_id AND l.session_id = r.session_id AND l.finished_at IS NULL))
        LIMIT 1) AS kept) AS past,
  ARRAY(SELECT t.tenant_id FROM tenants t WHERE EXISTS (
        SELECT 1 FROM runs r WHERE r.tenant_id = t.tenant_id AND r.id >= %(low)s AND r.id < %(high)s AND r.pruned & %(bit)s::int = 0)) AS tenants
