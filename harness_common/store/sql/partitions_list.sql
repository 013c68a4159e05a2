-- The partitions there are, by their week, with what they take; oldest first.
SELECT p.relname AS parent, c.relname AS name, to_date(right(c.relname, 8), 'YYYYMMDD') AS week,
       pg_total_relation_size(c.oid)::bigint AS bytes, greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)::bigint AS rows
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
WHERE p.relname IN ('events', 'checkpoints') AND p.relnamespace = 'public'::regnamespace AND c.relname ~ '_[0-9]{8}$'
ORDER BY 3, 1
