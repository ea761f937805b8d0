-- name: table_sizes
-- Return the bytes of each table with its indexes, and its rows as the server estimates them; NULL before it was analyzed.
SELECT c.relname::text AS name, CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint END AS rows,
       pg_total_relation_size(c.oid) AS bytes
FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT s.relnamespace FROM pg_class AS s WHERE s.oid = 'schema_version'::regclass)
ORDER BY c.relname;

-- name: store_size
-- Return the bytes of all tables with their indexes.
SELECT sum(pg_total_relation_size(c.oid))::bigint AS bytes, NULL::bigint AS free
FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = (SELECT s.relnamespace FROM pg_class AS s WHERE s.oid = 'schema_version'::regclass);
