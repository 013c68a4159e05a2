-- Keep a fact. One that is known lives longer and may become more trusted; no row: there is no room (only what is alive counts).
INSERT INTO memories (tenant_id, scope, user_id, body, kind, trust, digest, words, embedding, embedded_by, sealed, provenance, expires_at)
SELECT %(tenant_id)s, %(scope)s, %(user_id)s, %(body)s, %(kind)s, %(trust)s, %(digest)s, to_tsvector('english', %(words)s::text),
    %(embedding)s::real[], %(embedded_by)s, %(sealed)s, %(provenance)s::jsonb,
    clock_timestamp() + make_interval(days => %(expires_days)s::int)
WHERE %(max_facts)s > (
        SELECT count(*) FROM memories m WHERE m.tenant_id = %(tenant_id)s AND m.scope = %(scope)s AND m.user_id IS NOT DISTINCT FROM %(user_id)s
        AND (m.expires_at IS NULL OR m.expires_at > clock_timestamp()))
   OR EXISTS (
        SELECT 1 FROM memories m WHERE m.tenant_id = %(tenant_id)s AND m.scope = %(scope)s AND m.user_id IS NOT DISTINCT FROM %(user_id)s
        AND m.digest = %(digest)s)
ON CONFLICT (tenant_id, scope, user_id, digest) DO UPDATE SET
    expires_at = CASE WHEN memories.expires_at <= clock_timestamp() OR excluded.expires_at IS NULL THEN excluded.expires_at
                      WHEN memories.expires_at IS NULL THEN NULL ELSE greatest(memories.expires_at, excluded.expires_at) END,
    trust = CASE WHEN memories.expires_at <= clock_timestamp() THEN excluded.trust
                 WHEN 'trusted' IN (memories.trust, excluded.trust) THEN 'trusted'
                 WHEN 'approved' IN (memories.trust, excluded.trust) THEN 'approved' ELSE 'untrusted' END,
    embedding = coalesce(excluded.embedding, memories.embedding),
    embedded_by = CASE WHEN excluded.embedding IS NULL THEN memories.embedded_by ELSE excluded.embedded_by END
RETURNING id, created_at, expires_at, trust, xmax = 0 AS made
