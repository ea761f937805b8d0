-- name: host_numbers
-- The numbers of these origins.
SELECT origin, number FROM host WHERE origin = ANY(:origins::text[]);

-- name: insert_hosts
-- Make rows for origins that are new.
-- batch: arrays
INSERT INTO host (origin) SELECT * FROM unnest(:origin::text[]) AS g (origin) ORDER BY origin
ON CONFLICT (origin) DO NOTHING;

-- name: host_busy_for
-- How far away a host's next free slot is, locked until the slots are reserved.
SELECT next_at - shoal_now() AS busy_for FROM host WHERE number = :number FOR NO KEY UPDATE;
