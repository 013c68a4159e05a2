-- Find facts of a user (and those for all) by words and by meaning: each way gives its best, ranked; they are joined by rank outside.
-- What is asked for is worked out once (materialized), not for each fact.
WITH mine AS MATERIALIZED (
    SELECT id, words, embedding, embedded_by FROM memories
    WHERE tenant_id = %(tenant_id)s AND scope = %(scope)s AND (user_id = %(user_id)s OR user_id IS NULL)
      AND (expires_at IS NULL OR expires_at > clock_timestamp()) AND trust = ANY(%(trusts)s) AND words IS NOT NULL
), wanted AS MATERIALIZED (
    SELECT replace(plainto_tsquery('english', %(words)s)::text, '&', '|')::tsquery AS any_word, %(embedding)s::real[]::vector AS near
), by_words AS (
    SELECT id, ts_rank_cd(words, any_word, 1) AS rank FROM mine, wanted WHERE words @@ any_word ORDER BY rank DESC, id DESC LIMIT 50
), by_meaning AS (
    SELECT id, 1 - distance AS similarity FROM (
        SELECT id, embedding::vector <=> near AS distance FROM mine, wanted WHERE embedded_by = %(embedded_by)s) AS d
    ORDER BY distance, id DESC LIMIT 50
)
SELECT m.id, m.body, m.kind, m.trust, m.user_id, m.created_at, m.expires_at, m.provenance, w.rank, v.similarity
FROM by_words w FULL JOIN by_meaning v USING (id) JOIN memories m ON m.tenant_id = %(tenant_id)s AND m.id = coalesce(w.id, v.id)
