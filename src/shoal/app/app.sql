-- name: test_write
-- Write a single row, to test whether the disk accepts writes.
INSERT INTO pulse (name, at) VALUES (:name, shoal_now()) ON CONFLICT (name) DO UPDATE SET at = excluded.at;
