-- name: insert_hosts
-- Make a row for an origin that is new.
INSERT INTO host (origin) VALUES (:origin) ON CONFLICT (origin) DO NOTHING;

-- name: reserve_slots
-- Reserve consecutive slots at a host: the first begins after :lead or later, and all are due within :ahead. If the
-- host's next slot is later, none is reserved.
UPDATE host
SET granted = min(:slots, 1 + (s.until - s.base) / :delay),
    next_at = s.base + min(:slots, 1 + (s.until - s.base) / :delay) * :delay
FROM (SELECT max(h.next_at, h.held_until, shoal_now() + :lead) AS base, shoal_now() + :ahead AS until
      FROM host AS h WHERE h.number = :number) AS s
WHERE number = :number AND s.base <= s.until
RETURNING number, granted AS slots, next_at - granted * :delay - shoal_now() AS first_in;

-- name: keep_refusals
-- Store which URLs of hosts answered 503 recently.
UPDATE host SET refusals = :refusals WHERE number = :number;

-- name: update_hosts
-- Record the responses of hosts. If a response asks us to wait (:status), the host is put on hold for the requested
-- time (:hold) or, if no time is requested, for a back-off. The back-off doubles (:grows) unless it is the first. A
-- wait that the host requests does not double the back-off, and the next back-off after such a wait starts from the
-- beginning. While a host is on hold, only a longer wait that the host requests is applied, and an old back-off is
-- ignored. A good response (:well) ends the back-off, unless a different process was asked to wait in the meantime.
-- :latency is the response time; -1 means unchanged.
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
