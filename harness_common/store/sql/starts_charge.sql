-- Note until when the starts of tenants, and of all together, are paid for (core/rate.py).
WITH paid AS (
    SELECT * FROM jsonb_to_recordset(%(paid)s::jsonb) AS p (tenant_id uuid, tat_s float8)
), one AS (
    UPDATE tenant_slots SET starts_tat = to_timestamp(paid.tat_s) FROM paid WHERE tenant_slots.tenant_id = paid.tenant_id
)
UPDATE platform SET starts_tat = to_timestamp(paid.tat_s) FROM paid WHERE paid.tenant_id IS NULL AND platform.name = 'global'
