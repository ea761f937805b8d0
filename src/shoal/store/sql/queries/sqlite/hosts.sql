-- name: host_numbers
-- The numbers of these origins.
SELECT origin, number FROM host WHERE origin IN (SELECT value FROM json_each(:origins));

-- name: insert_hosts
-- Make a row for an origin that is new.
INSERT INTO host (origin) VALUES (:origin) ON CONFLICT (origin) DO NOTHING;

-- name: host_busy_for
-- How far away a host's next free slot is; the write lock keeps it so.
SELECT next_at - shoal_now() AS busy_for FROM host WHERE number = :number;
