-- Approvals of a tenant that wait for a person, newest first, before the approval `before`: by the index of the few that do.
SELECT a.*, r.agent_name, coalesce(r.memo->'acting'->>0, r.agent_name) AS acting_name, r.status AS run_status, r.cancel_requested AS run_cancel_requested, clock_timestamp() AS now
FROM approvals a JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
WHERE a.tenant_id = %(tenant_id)s AND a.status = 'pending' AND (%(before)s::uuid IS NULL OR a.id < %(before)s)
ORDER BY a.id DESC LIMIT %(limit)s
