-- The tools that live workers have, newest specification of each name first, with the queues they serve.
SELECT s.name, s.digest, s.spec, min(s.created_at) AS created_at, count(*) AS workers,
       array(SELECT DISTINCT q FROM worker_tools o JOIN workers v ON v.incarnation = o.incarnation, unnest(v.queues) q
             WHERE s.digest = ANY(o.digests) AND v.died_at IS NULL ORDER BY q) AS queues
FROM workers w JOIN worker_tools t ON t.incarnation = w.incarnation JOIN tool_specs s ON s.digest = ANY(t.digests)
WHERE w.died_at IS NULL
GROUP BY s.digest ORDER BY s.name, s.created_at DESC
