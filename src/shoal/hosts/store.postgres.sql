-- name: insert_hosts
-- Make rows for origins that are new.
-- batch: arrays
INSERT INTO host (origin) SELECT * FROM unnest(:origin::text[]) AS g (origin) ORDER BY origin
ON CONFLICT (origin) DO NOTHING;

-- name: reserve_slots
-- Reserve consecutive slots at hosts: the first begins after :lead or later, and all are due within :ahead. A host
-- whose next slot is later gets none. A host whose row is locked by another commit is skipped: no commit waits, so
-- there are no deadlocks.
-- batch: arrays
WITH free AS (
    SELECT number, greatest(next_at, held_until) AS free_at
    FROM host WHERE number = ANY(:number::int[]) ORDER BY number FOR NO KEY UPDATE SKIP LOCKED
), begun AS (
    SELECT f.number, g.slots, g.delay, g.ahead, greatest(f.free_at, shoal_now() + g.lead) AS base
    FROM free AS f
    JOIN unnest(:number::int[], :slots::int[], :delay::bigint[], :ahead::bigint[], :lead::bigint[])
         AS g (number, slots, delay, ahead, lead) ON g.number = f.number
), granted AS (
    SELECT number, base, delay, least(slots, 1 + (shoal_now() + ahead - base) / delay) AS slots
    FROM begun WHERE base <= shoal_now() + ahead
)
UPDATE host AS h SET next_at = g.base + g.slots * g.delay FROM granted AS g WHERE h.number = g.number
RETURNING h.number, g.slots, g.base - shoal_now() AS first_in;

-- name: keep_refusals
-- Store which URLs of hosts answered 503 recently.
-- batch: arrays
UPDATE host AS h SET refusals = g.refusals
FROM unnest(:number::int[], :refusals::text[]) AS g (number, refusals)
WHERE h.number >= g.number AND h.number <= g.number;

-- name: update_hosts
-- Record the responses of hosts. If a response asks us to wait (:status), the host is put on hold for the requested
-- time (:hold) or, if no time is requested, for a back-off. The back-off doubles (:grows) unless it is the first. A
-- wait that the host requests does not double the back-off, and the next back-off after such a wait starts from the
-- beginning. While a host is on hold, only a longer wait that the host requests is applied, and an old back-off is
-- ignored. A good response (:well) ends the back-off, unless a different process was asked to wait in the meantime.
-- :latency is the response time; -1 means unchanged.
-- batch: arrays
WITH locked AS (
    SELECT number, held_until, backoff, held_until > shoal_now() AS held
    FROM host WHERE number = ANY(:number::int[]) ORDER BY number FOR NO KEY UPDATE
), step AS (
    SELECT l.held, g.*,
           CASE WHEN l.held THEN l.backoff
                WHEN g.status = 0 THEN CASE WHEN g.well = 1 THEN 0 ELSE l.backoff END
                WHEN g.well = 1 OR l.backoff = 0 OR l.held_until < shoal_now() - g.forget
                THEN CASE WHEN g.hold > 0 THEN (g.first + 1) / 2 ELSE g.first END
                WHEN g.hold > 0 THEN l.backoff
                WHEN g.grows = 1 THEN least(2 * l.backoff, g.most)
                ELSE greatest(l.backoff, g.first) END AS backoff
    FROM locked AS l
    JOIN unnest(:number::int[], :status::smallint[], :hold::bigint[], :first::bigint[], :most::bigint[], :grows::int[],
                :forget::bigint[], :well::int[], :latency::bigint[])
         AS g (number, status, hold, first, most, grows, forget, well, latency) ON g.number = l.number
)
UPDATE host AS h
SET held_status = CASE WHEN s.status > 0 THEN s.status ELSE h.held_status END,
    backoff = s.backoff,
    held_until = CASE WHEN s.status > 0 AND s.hold > 0 THEN greatest(h.held_until, shoal_now() + s.hold)
                      WHEN s.status > 0 AND NOT s.held THEN shoal_now() + s.backoff
                      WHEN s.backoff = 0 THEN 0
                      ELSE h.held_until END,
    latency = CASE WHEN s.latency >= 0 THEN s.latency ELSE h.latency END,
    latency_at = CASE WHEN s.latency >= 0 THEN shoal_now() ELSE h.latency_at END
FROM step AS s WHERE h.number = s.number
RETURNING h.number, h.held_until - shoal_now() AS held_for;
