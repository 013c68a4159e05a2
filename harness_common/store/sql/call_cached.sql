-- The latest result of the same read within a session that may still be used again.
SELECT c.run_id, c.step, c.idx, c.result, c.trust, c.artifacts, c.finished_at
FROM tool_calls c JOIN runs r ON r.tenant_id = c.tenant_id AND r.id = c.run_id
WHERE c.tenant_id = %(tenant_id)s AND c.fingerprint = %(fingerprint)s AND c.cached_until > clock_timestamp()
  AND c.status = 'succeeded' AND r.session_id = %(session_id)s
ORDER BY c.cached_until DESC LIMIT 1
