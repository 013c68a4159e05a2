-- Why runs of a tenant failed since a time, of the newest 20,000 that ended.
SELECT coalesce(error->>'code', stop_reason, '') AS code, count(*)::int AS runs, max(finished_at) AS last_at
FROM (SELECT status, error, stop_reason, finished_at FROM runs
      WHERE tenant_id = %(tenant_id)s AND finished_at >= %(since)s ORDER BY finished_at DESC LIMIT 20000) AS ended
WHERE status = 'failed' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 8
