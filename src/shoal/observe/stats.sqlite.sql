-- name: add_to_hours
-- Add to the hourly statistics.
-- rows: hour kind name amount
INSERT INTO job_hour (hour, kind, name, amount) VALUES (:hour, :kind, :name, :amount)
ON CONFLICT (hour, kind, name) DO UPDATE SET amount = amount + excluded.amount;

-- name: add_bots_to_hour
-- Add the numbers of bot actions to an hour.
-- rows: hour token bot_id seen_at pulled results failures invalid_data late_results heartbeats late_heartbeats lost_leases
INSERT INTO bot_hour (hour, token, bot_id, seen_at, pulled, results, failures, invalid_data, late_results, heartbeats,
                      late_heartbeats, lost_leases)
VALUES (:hour, :token, :bot_id, :seen_at, :pulled, :results, :failures, :invalid_data, :late_results, :heartbeats,
        :late_heartbeats, :lost_leases)
ON CONFLICT (hour, token, bot_id)
DO UPDATE SET seen_at = max(seen_at, excluded.seen_at), pulled = pulled + excluded.pulled,
              results = results + excluded.results, failures = failures + excluded.failures,
              invalid_data = invalid_data + excluded.invalid_data, late_results = late_results + excluded.late_results,
              heartbeats = heartbeats + excluded.heartbeats,
              late_heartbeats = late_heartbeats + excluded.late_heartbeats,
              lost_leases = lost_leases + excluded.lost_leases;

-- name: table_sizes
-- Return how many rows large tables have at most, by the range of their row numbers; the file does not know the bytes of
-- a table without reading it.
SELECT 'crawl' AS name, (SELECT max(rowid) FROM crawl) - (SELECT min(rowid) FROM crawl) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'page' AS name, (SELECT max(rowid) FROM page) - (SELECT min(rowid) FROM page) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'job' AS name, (SELECT max(rowid) FROM job) - (SELECT min(rowid) FROM job) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'job_group' AS name, (SELECT max(rowid) FROM job_group) - (SELECT min(rowid) FROM job_group) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'result' AS name, (SELECT max(rowid) FROM result) - (SELECT min(rowid) FROM result) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'outbox' AS name, (SELECT max(rowid) FROM outbox) - (SELECT min(rowid) FROM outbox) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'delivery' AS name, (SELECT max(rowid) FROM delivery) - (SELECT min(rowid) FROM delivery) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'analysis' AS name, (SELECT max(rowid) FROM analysis) - (SELECT min(rowid) FROM analysis) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'job_hour' AS name, (SELECT max(rowid) FROM job_hour) - (SELECT min(rowid) FROM job_hour) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'bot_hour' AS name, (SELECT max(rowid) FROM bot_hour) - (SELECT min(rowid) FROM bot_hour) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'policy' AS name, (SELECT max(rowid) FROM policy) - (SELECT min(rowid) FROM policy) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'audit_entry' AS name, (SELECT max(rowid) FROM audit_entry) - (SELECT min(rowid) FROM audit_entry) + 1 AS rows, NULL AS bytes UNION ALL
SELECT 'fate', NULL, NULL;

-- name: store_size
-- Return the size of the file in bytes, and the number of free bytes inside it.
SELECT p.page_count * s.page_size AS bytes, f.freelist_count * s.page_size AS free
FROM pragma_page_count() AS p, pragma_page_size() AS s, pragma_freelist_count() AS f;
