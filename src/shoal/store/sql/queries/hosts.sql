-- name: host_robots
-- What is kept of a host's robots.txt.
SELECT robots_state, robots, robots_at FROM host WHERE origin = :origin;

-- name: keep_robots
-- Keep what a host's robots.txt said.
UPDATE host SET robots_state = :state, robots = :body, robots_at = :fetched_at, delay = :delay WHERE origin = :origin;
