-- name: add_to_hours
-- Add to the hourly statistics.
-- rows: hour kind name amount
INSERT INTO job_hour (hour, kind, name, amount) VALUES (:hour, :kind, :name, :amount)
ON CONFLICT (hour, kind, name) DO UPDATE SET amount = amount + excluded.amount;

-- name: add_bots_to_hour
-- Record which bots sent requests in an hour.
-- rows: hour token bot_id pulled seen_at
INSERT INTO bot_hour (hour, token, bot_id, pulled, seen_at) VALUES (:hour, :token, :bot_id, :pulled, :seen_at)
ON CONFLICT (hour, token, bot_id) DO UPDATE SET pulled = pulled + excluded.pulled, seen_at = excluded.seen_at;
