-- name: add_to_hours
-- Add to the hourly statistics.
-- rows: hour kind name amount
INSERT INTO job_hour (hour, kind, name, amount)
SELECT * FROM unnest(:hour::bigint[], :kind::text[], :name::text[], :amount::float8[]) AS g (hour, kind, name, amount)
ON CONFLICT (hour, kind, name) DO UPDATE SET amount = job_hour.amount + excluded.amount;

-- name: add_bots_to_hour
-- Record which bots sent requests in an hour.
-- rows: hour token bot_id pulled seen_at
INSERT INTO bot_hour (hour, token, bot_id, pulled, seen_at)
SELECT * FROM unnest(:hour::bigint[], :token::text[], :bot_id::text[], :pulled::bigint[], :seen_at::bigint[])
              AS g (hour, token, bot_id, pulled, seen_at)
ON CONFLICT (hour, token, bot_id)
DO UPDATE SET pulled = bot_hour.pulled + excluded.pulled, seen_at = excluded.seen_at;
