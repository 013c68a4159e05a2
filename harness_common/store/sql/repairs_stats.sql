-- Repairs of a month by agent, model and kind, the most frequent first.
SELECT r.agent, r.model, k.key AS kind, sum(k.value::int)::int AS repairs, count(*)::int AS answers
FROM repairs r, jsonb_each_text(r.kinds) k
WHERE r.tenant_id = %(tenant_id)s AND r.at >= %(from)s AND r.at < %(to)s AND (%(agent)s::text IS NULL OR r.agent = %(agent)s)
GROUP BY r.agent, r.model, k.key
ORDER BY repairs DESC, r.agent, r.model, k.key
LIMIT 1000
