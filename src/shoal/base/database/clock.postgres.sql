-- name: clock
-- Return the anchor of the store's clock, the time of the store's clock, and the time of the server's clock.
SELECT at, since, jumped_at, shoal_now() AS now, server_now(shift) AS server FROM store_clock;

-- name: anchor_server_clock
-- Set a new anchor for the store's clock, unless another process has set one since the anchor was read.
UPDATE store_clock SET at = :at, since = :since, jumped_at = :jumped_at
WHERE since = :seen_since AND jumped_at = :seen_jumped_at;
