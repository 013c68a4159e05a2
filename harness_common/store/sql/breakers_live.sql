-- The breakers that are open now, for a process that starts or may have missed a broadcast.
SELECT tenant_id, tool, state, failures, until, reason, probe_until, updated_at FROM tool_breakers WHERE state = 'open'
