-- Reserve a part of a day's budget of a tenant (or of the platform, the nil tenant) if it still fits; says what is in the way.
-- A step that is not expected to cost anything always fits: what it costs all the same is counted when it is known.
WITH cap AS (
    SELECT tokens_per_day, cost_usd_per_day FROM tenant_slots WHERE tenant_id = %(who)s
    UNION ALL
    SELECT tokens_per_day, cost_usd_per_day FROM platform WHERE name = 'global' AND %(who)s = '00000000-0000-0000-0000-000000000000'::uuid
), today AS (
    SELECT %(day)s::date AS today
), made AS (
    INSERT INTO tenant_days AS d (tenant_id, day, reserved_tokens, reserved_usd)
    SELECT %(who)s, today, %(tokens)s, %(cost_usd)s FROM today LEFT JOIN cap ON true
    WHERE %(tokens)s <= coalesce(tokens_per_day, %(tokens)s) AND %(cost_usd)s <= coalesce(cost_usd_per_day, %(cost_usd)s)
    ON CONFLICT (tenant_id, day) DO UPDATE
        SET reserved_tokens = d.reserved_tokens + excluded.reserved_tokens, reserved_usd = d.reserved_usd + excluded.reserved_usd
        WHERE excluded.reserved_tokens = 0 AND excluded.reserved_usd = 0
           OR d.tokens + d.reserved_tokens + excluded.reserved_tokens <= coalesce((SELECT tokens_per_day FROM cap), 9223372036854775807)
          AND d.cost_usd + d.reserved_usd + excluded.reserved_usd <= coalesce((SELECT cost_usd_per_day FROM cap), 'infinity'::float8)
    RETURNING 1
)
SELECT EXISTS (SELECT 1 FROM made) AS reserved, today.today, clock_timestamp() AS now, cap.tokens_per_day, cap.cost_usd_per_day,
       coalesce(d.tokens + d.reserved_tokens, 0) + %(tokens)s > coalesce(cap.tokens_per_day, 9223372036854775807) AS over_tokens,
       CASE WHEN coalesce(d.tokens + d.reserved_tokens, 0) + %(tokens)s > coalesce(cap.tokens_per_day, 9223372036854775807)
            THEN coalesce(d.tokens + d.reserved_tokens, 0)::float8 ELSE coalesce(d.cost_usd + d.reserved_usd, 0) END AS used
FROM today LEFT JOIN cap ON true LEFT JOIN tenant_days d ON d.tenant_id = %(who)s AND d.day = today.today
