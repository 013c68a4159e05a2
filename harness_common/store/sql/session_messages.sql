-- Messages of a session's runs, the newest run's last first, before (run, n); what a retry took over from its source is left out.
SELECT m.tenant_id, m.run_id, m.n, m.step, m.role, m.trust, m.body, m.created_at
FROM runs r JOIN messages m ON m.tenant_id = r.tenant_id AND m.run_id = r.id
LEFT JOIN runs s ON s.tenant_id = r.tenant_id AND s.id = r.forked_from AND s.session_id = r.session_id
WHERE r.tenant_id = %(tenant_id)s AND r.session_id = %(session_id)s AND (s.id IS NULL OR m.step > r.forked_step)
  AND (%(before_run)s::uuid IS NULL OR r.id <= %(before_run)s)
  AND (%(before_run)s::uuid IS NULL OR r.id < %(before_run)s OR m.n < %(before_n)s)
ORDER BY r.id DESC, m.n DESC LIMIT %(limit)s
