-- Say which tools a worker process has; a specification is written once. Old ones that nobody has are dropped.
WITH given AS (
    SELECT * FROM unnest(%(digests)s::text[], %(names)s::text[], %(specs)s::json[]) AS g(digest, name, spec)
), fresh AS (
    INSERT INTO tool_specs (digest, name, spec) SELECT digest, name, spec FROM given ON CONFLICT (digest) DO NOTHING
), stale AS (
    DELETE FROM tool_specs s WHERE created_at < clock_timestamp() - interval '30 days' AND digest <> ALL(%(digests)s::text[])
    AND NOT EXISTS (SELECT 1 FROM worker_tools w WHERE s.digest = ANY(w.digests))
)
INSERT INTO worker_tools (incarnation, digests)
SELECT incarnation, %(digests)s::text[] FROM workers WHERE incarnation = %(worker)s
ON CONFLICT (incarnation) DO UPDATE SET digests = EXCLUDED.digests
