-- Child runs that go on although their parent was asked to stop or has ended.
SELECT c.tenant_id, c.id AS run_id, c.parent_run_id, p.status AS parent_status FROM runs c
JOIN runs p ON p.tenant_id = c.tenant_id AND p.id = c.parent_run_id
WHERE c.parent_run_id IS NOT NULL AND c.finished_at IS NULL AND NOT c.cancel_requested
  AND (p.cancel_requested OR p.finished_at IS NOT NULL) AND NOT (c.id = ANY(%(skipped)s::uuid[]))
LIMIT %(batch)s
