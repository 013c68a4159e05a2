-- What each table takes with its indexes, the largest first; a partitioned one with its partitions. Rows are about as many as were last counted.
SELECT coalesce(p.relname, c.relname) AS "table", sum(greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0))::bigint AS rows, sum(pg_total_relation_size(c.oid))::bigint AS bytes
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
GROUP BY 1 ORDER BY 3 DESC, 1
