-- name: add_to_hours
-- Add to the hourly statistics.
-- rows: hour kind name amount
INSERT INTO job_hour (hour, kind, name, amount)
SELECT * FROM unnest(:hour::bigint[], :kind::text[], :name::text[], :amount::float8[]) AS g (hour, kind, name, amount)
ON CONFLICT (hour, kind, name) DO UPDATE SET amount = job_hour.amount + excluded.amount;

-- name: add_bots_to_hour
-- Add the numbers of bot actions to an hour.
-- rows: hour token bot_id seen_at pulled results failures invalid_data late_results heartbeats late_heartbeats lost_leases
INSERT INTO bot_hour (hour, token, bot_id, seen_at, pulled, results, failures, invalid_data, late_results, heartbeats,
                      late_heartbeats, lost_leases)
SELECT * FROM unnest(:hour::bigint[], :token::text[], :bot_id::text[], :seen_at::bigint[], :pulled::bigint[],
                     :results::bigint[], :failures::bigint[], :invalid_data::bigint[], :late_results::bigint[],
                     :heartbeats::bigint[], :late_heartbeats::bigint[], :lost_leases::bigint[])
              AS g (hour, token, bot_id, seen_at, pulled, results, failures, invalid_data, late_results, heartbeats,
                    late_heartbeats, lost_leases)
ON CONFLICT (hour, token, bot_id)
DO UPDATE SET seen_at = greatest(bot_hour.seen_at, excluded.seen_at), pulled = bot_hour.pulled + excluded.pulled,
              results = bot_hour.results + excluded.results, failures = bot_hour.failures + excluded.failures,
              invalid_data = bot_hour.invalid_data + excluded.invalid_data,
              late_results = bot_hour.late_results + excluded.late_results,
              heartbeats = bot_hour.heartbeats + excluded.heartbeats,
              late_heartbeats = bot_hour.late_heartbeats + excluded.late_heartbeats,
              lost_leases = bot_hour.lost_leases + excluded.lost_leases;

-- name: table_sizes
-- Return the bytes of each table with its indexes, and the server's estimate of its rows; NULL before the first ANALYZE.
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
