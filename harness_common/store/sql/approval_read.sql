-- One approval with its run, as the API shows it.
SELECT a.*, r.agent_name, coalesce(r.memo->'acting'->>0, r.agent_name) AS acting_name, r.status AS run_status, r.cancel_requested AS run_cancel_requested, clock_timestamp() AS now
FROM approvals a JOIN runs r ON r.tenant_id = a.tenant_id AND r.id = a.run_id
WHERE a.tenant_id = %(tenant_id)s AND a.id = %(id)s
