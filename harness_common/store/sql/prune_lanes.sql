-- What is past its age, a row for each tenant, kind and what such runs have lost already; one look into an index each.
WITH ages AS (
    SELECT t.tenant_id, k.bit, now() - make_interval(days => k.days) AS before
    FROM tenants t LEFT JOIN retention a ON a.tenant_id = t.tenant_id
    CROSS JOIN LATERAL (VALUES
        (8, coalesce(a.runs_days, %(runs_days)s::int)),
        (1, least(coalesce(a.events_days, %(events_days)s::int), coalesce(a.runs_days, %(runs_days)s::int))),
        (2, least(coalesce(a.checkpoints_days, %(checkpoints_days)s::int), coalesce(a.runs_days, %(runs_days)s::int))),
        (4, least(coalesce(a.artifacts_days, %(artifacts_days)s::int), coalesce(a.runs_days, %(runs_days)s::int)))) AS k (bit, days)
    WHERE k.days IS NOT NULL
)
SELECT a.tenant_id, a.bit, v.pruned, a.before
FROM ages a CROSS JOIN generate_series(0, 15) AS v (pruned)
CROSS JOIN LATERAL (
    SELECT 1 FROM runs r WHERE r.tenant_id = a.tenant_id AND r.pruned = v.pruned AND r.finished_at < a.before LIMIT 1) AS past
WHERE a.bit = 8 OR v.pruned & a.bit = 0
ORDER BY a.bit DESC, a.tenant_id
