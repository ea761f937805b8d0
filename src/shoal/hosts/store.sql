-- name: host_robots
-- The stored record of a host's robots.txt.
SELECT robots_state, robots, shoal_now() - robots_at AS age FROM host WHERE origin = :origin;

-- name: keep_robots
-- Store the robots.txt of a host. The crawl delay in the file applies immediately, not only after the next slot.
UPDATE host
SET robots_state = :state, robots = :body, robots_hash = :hash, robots_at = shoal_now(), delay = cast(:delay AS bigint),
    next_at = CASE WHEN cast(:delay AS bigint) > 0 AND next_at < shoal_now() + cast(:delay AS bigint)
                   THEN shoal_now() + cast(:delay AS bigint) ELSE next_at END
WHERE origin = :origin;

-- name: robots_unchanged
-- Record that a host's robots.txt has not changed; the file is not written again.
UPDATE host SET robots_at = shoal_now(), delay = :delay
WHERE origin = :origin AND robots_state = :state AND robots_hash = :hash;

-- name: host_numbers
-- The numbers of these origins.
SELECT origin, number FROM host WHERE origin = ANY(:origins::text[]);

-- name: host_states
-- Return the states of hosts.
SELECT number, next_at, delay, held_until, backoff, latency, latency_at, robots_at, shoal_now() AS now
FROM host WHERE number = ANY(:numbers::int[]);

-- name: hosts_at_origins
-- Return the numbers and states of the hosts with these origins.
SELECT origin, number, next_at, delay, held_until, backoff, latency, latency_at, robots_at, (SELECT shoal_now()) AS now
FROM host WHERE origin = ANY(:origins::text[]);

-- name: lock_refusals
-- Return which URLs of hosts answered 503 recently, locked until this commit ends.
SELECT number, refusals, shoal_now() AS now FROM host WHERE number = ANY(:numbers::int[])
ORDER BY number FOR NO KEY UPDATE;
