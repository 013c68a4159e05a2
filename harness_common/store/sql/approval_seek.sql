-- What a call that needs a person goes by: the last approval of it, an id for a new one, and where the call comes from.
-- Who started a run is who started the first one above it; of a scheduled one, who made the schedule.
WITH RECURSIVE above AS (
    SELECT id, parent_run_id, created_by FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s
    UNION ALL
    SELECT r.id, r.parent_run_id, r.created_by
    FROM above a CROSS JOIN LATERAL (SELECT * FROM runs WHERE tenant_id = %(tenant_id)s AND id = a.parent_run_id OFFSET 0) AS r
), first AS (
    SELECT created_by FROM above WHERE parent_run_id IS NULL
)
SELECT uuid7() AS new_id,
    coalesce((SELECT s.created_by FROM schedules s WHERE s.tenant_id = %(tenant_id)s AND first.created_by LIKE 'sched\_%%'
              AND 'sched_' || replace(s.id::text, '-', '') = first.created_by AND s.created_by <> ''), first.created_by) AS started_by,
    (SELECT max(m.n) FROM messages m WHERE m.tenant_id = %(tenant_id)s AND m.run_id = %(run_id)s) AS message,
    EXISTS (SELECT 1 FROM messages m WHERE m.tenant_id = %(tenant_id)s AND m.run_id = %(run_id)s AND m.trust = 'untrusted') AS tainted,
    a.*
FROM first LEFT JOIN LATERAL (
    SELECT id, status, digest, tool_version, policy_version, arguments, original_digest, original_arguments, edited_by, reason, decided_by,
           decided_role, expires_at
    FROM approvals WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND step = %(step)s AND idx = %(idx)s
    ORDER BY id DESC LIMIT 1) AS a ON true
