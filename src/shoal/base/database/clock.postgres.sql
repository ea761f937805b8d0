-- name: clock
-- The anchor of the store's clock, what it shows, and what the server's shows.
SELECT at, since, jumped_at, shoal_now() AS now, server_now(shift) AS server FROM store_clock;

-- name: anchor_server_clock
-- Set a new anchor for the store's clock, unless another process has since it was read.
UPDATE store_clock SET at = :at, since = :since, jumped_at = :jumped_at
WHERE since = :seen_since AND jumped_at = :seen_jumped_at;
