-- name: host_numbers
-- The numbers of these origins.
SELECT origin, number FROM host WHERE origin IN (SELECT value FROM json_each(:origins));

-- name: insert_hosts
-- Make a row for an origin that is new.
INSERT INTO host (origin) VALUES (:origin) ON CONFLICT (origin) DO NOTHING;

-- name: host_standings
-- How hosts stand.
SELECT number, next_at, delay, held_until, backoff, latency, latency_at, robots_at, shoal_now() AS now
FROM host WHERE number IN (SELECT value FROM json_each(:numbers));

-- name: hosts_at_origins
-- The numbers of these origins, and how they stand.
SELECT origin, number, next_at, delay, held_until, backoff, latency, latency_at, robots_at, (SELECT shoal_now()) AS now
FROM host WHERE origin IN (SELECT value FROM json_each(:origins));

-- name: reserve_slots
-- Reserve requests in a row at a host, as many as are due within :ahead; none if its next slot is further away.
UPDATE host
SET granted = min(:slots, 1 + (s.until - s.base) / :delay),
    next_at = s.base + min(:slots, 1 + (s.until - s.base) / :delay) * :delay
FROM (SELECT max(h.next_at, h.held_until, shoal_now()) AS base, shoal_now() + :ahead AS until
      FROM host AS h WHERE h.number = :number) AS s
WHERE number = :number AND s.base <= s.until
RETURNING number, granted AS slots, next_at - granted * :delay - shoal_now() AS first_in;

-- name: lock_refusals
-- Which URLs of hosts answered 503 lately, as it was kept.
SELECT number, refusals, shoal_now() AS now FROM host WHERE number IN (SELECT value FROM json_each(:numbers));

-- name: keep_refusals
-- Which URLs of a host answered 503 lately.
UPDATE host SET refusals = :refusals WHERE number = :number;

-- name: hear_hosts
-- What hosts said. One that asks us to wait (:status) is held as long as it says (:hold), else for a back-off, which doubles
-- (:grows) if it does not begin one; its own wishes do not double it, and the first after them is as long as any first. While
-- it is held, only a longer wish of its own counts, and a back-off that is long past is forgotten. A good answer (:well) ends the back-off, unless somebody was told to wait meanwhile. :latency: how
-- long its answers take; -1: as before.
UPDATE host
SET held_status = CASE WHEN :status > 0 THEN :status ELSE held_status END,
    backoff = s.backoff,
    held_until = CASE WHEN :status > 0 AND :hold > 0 THEN max(held_until, s.now + :hold)
                      WHEN :status > 0 AND NOT s.held THEN s.now + s.backoff
                      WHEN s.backoff = 0 THEN 0
                      ELSE held_until END,
    latency = CASE WHEN :latency >= 0 THEN :latency ELSE latency END,
    latency_at = CASE WHEN :latency >= 0 THEN s.now ELSE latency_at END
FROM (SELECT shoal_now() AS now, h.held_until > shoal_now() AS held,
             CASE WHEN h.held_until > shoal_now() THEN h.backoff
                  WHEN :status = 0 THEN CASE WHEN :well THEN 0 ELSE h.backoff END
                  WHEN :well OR h.backoff = 0 OR h.held_until < shoal_now() - :forget
                  THEN CASE WHEN :hold > 0 THEN (:first + 1) / 2 ELSE :first END
                  WHEN :hold > 0 THEN h.backoff
                  WHEN :grows THEN min(2 * h.backoff, :most)
                  ELSE max(h.backoff, :first) END AS backoff
      FROM host AS h WHERE h.number = :number) AS s
WHERE number = :number
RETURNING number, held_until - shoal_now() AS held_for;
