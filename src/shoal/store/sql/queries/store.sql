-- name: feel_pulse
-- The smallest write that the disk has to take.
INSERT INTO pulse (name, at) VALUES (:name, shoal_now()) ON CONFLICT (name) DO UPDATE SET at = excluded.at;
