-- name: add_to_hours
-- Add to the hourly statistics.
-- rows: hour kind name amount
INSERT INTO job_hour (hour, kind, name, amount) VALUES (:hour, :kind, :name, :amount)
ON CONFLICT (hour, kind, name) DO UPDATE SET amount = amount + excluded.amount;

-- name: add_bots_to_hour
-- Add what bots did in an hour.
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
