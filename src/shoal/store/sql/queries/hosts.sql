-- name: host_robots
-- What is kept of a host's robots.txt.
SELECT robots_state, robots, shoal_now() - robots_at AS age FROM host WHERE origin = :origin;

-- name: keep_robots
-- Keep what a host's robots.txt said. The delay that it asks for counts from now on, not only from the next slot on.
UPDATE host
SET robots_state = :state, robots = :body, robots_hash = :hash, robots_at = shoal_now(), delay = cast(:delay AS bigint),
    next_at = CASE WHEN cast(:delay AS bigint) > 0 AND next_at < shoal_now() + cast(:delay AS bigint)
                   THEN shoal_now() + cast(:delay AS bigint) ELSE next_at END
WHERE origin = :origin;

-- name: robots_unchanged
-- A host's robots.txt says what it said before: only when that was asked is new, and the file is not written again.
UPDATE host SET robots_at = shoal_now(), delay = :delay
WHERE origin = :origin AND robots_state = :state AND robots_hash = :hash;

-- name: held_hosts
-- Hosts of a crawl that are held just now although something waits there, the longest held first. `> 0`: the index's own
-- condition, or it would not be used.
SELECT h.origin, h.held_until, h.held_status
FROM host AS h
WHERE h.held_until > 0 AND h.held_until > shoal_now()
      AND (SELECT fh.ready_at FROM frontier_host AS fh WHERE fh.crawl = :crawl AND fh.host = h.number) IS NOT NULL
ORDER BY h.held_until DESC
LIMIT :most;
