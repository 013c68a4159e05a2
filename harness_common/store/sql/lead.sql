-- Become or stay the leader: a new term for a new holder. No row back: somebody else leads.
INSERT INTO leader AS l (name, term, holder, holder_name, until)
VALUES (%(name)s, 1, %(holder)s, %(holder_name)s, clock_timestamp() + make_interval(secs => %(ttl_s)s))
ON CONFLICT (name) DO UPDATE SET
    term = l.term + (l.holder IS DISTINCT FROM excluded.holder OR l.until < clock_timestamp())::int,
    holder = excluded.holder, holder_name = excluded.holder_name, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < clock_timestamp()
RETURNING term, set_config('synchronous_commit', 'on', true)
