-- name: insert_hosts
-- Make a row for an origin that is new.
INSERT INTO host (origin) VALUES (:origin) ON CONFLICT (origin) DO NOTHING;

-- name: reserve_slots
-- Reserve requests in a row at a host; how far away the first of them is.
UPDATE host
SET next_at = CASE WHEN next_at > shoal_now() THEN next_at ELSE shoal_now() END + :total
WHERE number = :number
RETURNING next_at - :total - shoal_now() AS first_in;

-- name: host_busy_for
-- How far away a host's next free slot is.
SELECT next_at - shoal_now() AS busy_for FROM host WHERE number = :number;
