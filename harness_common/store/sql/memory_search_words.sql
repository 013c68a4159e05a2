-- Find facts of a user (and those for all) by words alone: the server has no extension `vector`, or there is no embedding to compare.
SELECT m.id, m.body, m.kind, m.trust, m.user_id, m.created_at, m.expires_at, m.provenance,
    ts_rank_cd(m.words, q.any_word, 1) AS rank, NULL::float8 AS similarity
FROM memories m, (SELECT replace(plainto_tsquery('english', %(words)s)::text, '&', '|')::tsquery AS any_word) AS q
WHERE m.tenant_id = %(tenant_id)s AND m.scope = %(scope)s AND (m.user_id = %(user_id)s OR m.user_id IS NULL)
  AND (m.expires_at IS NULL OR m.expires_at > clock_timestamp()) AND m.trust = ANY(%(trusts)s) AND m.words @@ q.any_word
ORDER BY rank DESC, m.id DESC LIMIT 50
