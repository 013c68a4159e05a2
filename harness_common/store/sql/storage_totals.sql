-- The size of the database, about how many runs there are, and blobs that wait to be deleted.
SELECT pg_database_size(current_database())::bigint AS database_bytes,
       (SELECT greatest(reltuples, pg_stat_get_live_tuples(oid), 0) FROM pg_class WHERE oid = 'public.runs'::regclass)::bigint AS runs,
       (SELECT count(*) FROM (SELECT 1 FROM blob_garbage LIMIT 10000) AS waiting)::int AS garbage_blobs
