-- name: host_robots
-- The stored record of a host's robots.txt.
SELECT robots_state, robots, shoal_now() - robots_at AS age FROM host WHERE origin = :origin;

-- name: keep_robots
-- Store the robots.txt of a host. Its crawl delay applies at once, not only from the next slot on.
UPDATE host
SET robots_state = :state, robots = :body, robots_hash = :hash, robots_at = shoal_now(), delay = cast(:delay AS bigint),
    next_at = CASE WHEN cast(:delay AS bigint) > 0 AND next_at < shoal_now() + cast(:delay AS bigint)
                   THEN shoal_now() + cast(:delay AS bigint) ELSE next_at END
WHERE origin = :origin;

-- name: robots_unchanged
-- Record that a host's robots.txt has not changed; the file is not written again.
UPDATE host SET robots_at = shoal_now(), delay = :delay
WHERE origin = :origin AND robots_state = :state AND robots_hash = :hash;

-- name: held_hosts
-- Return hosts of a crawl that are on hold and have waiting URLs, the longest hold first. `> 0` repeats the condition
-- of the index, which would not be used otherwise.
SELECT h.origin, h.held_until, h.held_status
FROM host AS h
WHERE h.held_until > 0 AND h.held_until > shoal_now()
      AND (SELECT fh.ready_at FROM frontier_host AS fh WHERE fh.crawl = :crawl AND fh.host = h.number) IS NOT NULL
ORDER BY h.held_until DESC
LIMIT :most;
