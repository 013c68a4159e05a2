-- Announce a worker process.
INSERT INTO workers (incarnation, name, host, pid, queues, concurrency, version, plugins)
VALUES (%(worker)s, %(name)s, %(host)s, %(pid)s, %(queues)s, %(concurrency)s, %(version)s, %(plugins)s::jsonb)
ON CONFLICT (incarnation) DO UPDATE SET seen_at = clock_timestamp()
RETURNING clock_timestamp() AS now
