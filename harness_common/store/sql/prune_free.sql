-- Of runs that are held, those that nobody needs: no fork that still has as much, no parent or child under way, no live run in the session. A statement of its own: it sees what was committed before the runs were held.
SELECT r.id FROM runs r
WHERE r.tenant_id = %(tenant_id)s AND r.id = ANY(%(ids)s::uuid[]) AND r.finished_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM runs f WHERE f.tenant_id = r.tenant_id AND f.forked_from = r.id AND f.pruned & %(bit)s::int = 0)
  AND NOT EXISTS (SELECT 1 FROM runs p WHERE p.tenant_id = r.tenant_id AND p.id = r.parent_run_id AND p.finished_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.tenant_id = r.tenant_id AND c.parent_run_id = r.id AND c.finished_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM runs l WHERE l.tenant_id = r.tenant_id AND l.session_id = r.session_id AND l.finished_at IS NULL)
