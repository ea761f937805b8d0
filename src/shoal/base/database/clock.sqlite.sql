-- name: clock
-- Return the anchor of the store's clock, and the time of the store's clock.
SELECT boot, base, at, since, jumped_at, untold, shoal_now() AS now FROM store_clock;

-- name: anchor_machine_clock
-- Set a new anchor for the store's clock.
UPDATE store_clock
SET boot = :boot, base = :base, at = :at, since = :since, jumped_at = :jumped_at, untold = :untold;
