-- name: reserve_slots
-- Reserve requests in a row at a host; how far away the first of them is.
UPDATE host
SET next_at = CASE WHEN next_at > shoal_now() THEN next_at ELSE shoal_now() END + :total
WHERE number = :number
RETURNING next_at - :total - shoal_now() AS first_in;

-- name: host_robots
-- What is kept of a host's robots.txt.
SELECT robots_state, robots, robots_at FROM host WHERE origin = :origin;

-- name: keep_robots
-- Keep what a host's robots.txt said.
UPDATE host SET robots_state = :state, robots = :body, robots_at = :fetched_at, delay = :delay WHERE origin = :origin;
