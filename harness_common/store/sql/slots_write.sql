-- Write what a round of admission decided for tenants that it holds: their blocks of the global limit, whether a waiting run could
-- use one of their slots, and when they last got one.
UPDATE tenant_slots SET granted = w.granted, crowded = w.crowded,
    last_admitted_at = CASE WHEN w.given THEN clock_timestamp() ELSE last_admitted_at END
FROM jsonb_to_recordset(%(slots)s::jsonb) AS w (tenant_id uuid, granted int, crowded boolean, given boolean)
WHERE tenant_slots.tenant_id = w.tenant_id
