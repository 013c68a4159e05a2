-- What an erasure would delete: of a user, or with a null of the whole tenant.
WITH s AS (SELECT id FROM sessions WHERE tenant_id = %(tenant_id)s AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s::text)),
     r AS (SELECT r.id, r.finished_at, r.next_seq, r.step, r.messages FROM runs r JOIN s ON s.id = r.session_id WHERE r.tenant_id = %(tenant_id)s)
SELECT (SELECT count(*) FROM s)::int AS sessions, (SELECT count(*) FROM r)::int AS runs,
       (SELECT count(*) FROM r WHERE finished_at IS NULL)::int AS live_runs,
       (SELECT coalesce(sum(next_seq - 1), 0) FROM r)::bigint AS events,
       (SELECT coalesce(sum(messages), 0) FROM r)::bigint AS messages,
       (SELECT count(*) FROM artifacts a WHERE a.tenant_id = %(tenant_id)s AND (%(user_id)s::text IS NULL OR a.run_id IN (SELECT id FROM r)))::int AS artifacts,
       (SELECT count(*) FROM memories m WHERE m.tenant_id = %(tenant_id)s AND (%(user_id)s::text IS NULL OR m.user_id = %(user_id)s::text
            OR m.provenance->>'run' IN (SELECT 'run_' || replace(id::text, '-', '') FROM r)))::int AS memories
