-- name: add_fates
-- Record new URLs, in key order so that two batches never wait for each other; which were new. One that was skipped
-- for the way that led there (its depth 16, nofollow 21, not in a sitemap 31) and is found in another opens (0); `was` is
-- what it had been, as this statement's snapshot knows it.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate)
SELECT g.crawl, g.key, g.chk, g.fate
FROM unnest(:key::bigint[], :chk::int[], :crawl::int[], :fate::smallint[]) AS g (key, chk, crawl, fate)
ORDER BY g.key, g.chk
ON CONFLICT (crawl, chk, key) DO UPDATE SET fate = excluded.fate WHERE fate.fate IN (16, 21, 31) AND excluded.fate = 0
RETURNING key, chk, xmax <> 0 AS reopened,
          CASE WHEN xmax <> 0 THEN (SELECT o.fate FROM fate AS o
                                    WHERE o.crawl = fate.crawl AND o.key = fate.key AND o.chk = fate.chk) END AS was;

-- name: keep_fates
-- Record URLs that are not known, with what became of them.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate)
SELECT * FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :fate::smallint[]) AS g (crawl, key, chk, fate)
ORDER BY crawl, key, chk
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: add_waiting
-- Add new URLs to those that wait, in the order in which they were found.
-- rows: crawl host due depth seq key chk parent kind path
INSERT INTO frontier (crawl, host, due, depth, key, chk, parent, kind, path)
SELECT crawl, host, due, depth, key, chk, parent, kind, path
FROM unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::int[], :key::bigint[], :chk::int[],
            :parent::bigint[], :kind::smallint[], :path::text[])
     AS g (crawl, host, due, depth, seq, key, chk, parent, kind, path);

-- name: ready_hosts
-- The hosts of a crawl that may be asked now and that no other live walker has claimed, longest waiting first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now
FROM frontier_host AS fh JOIN host AS h ON h.number = fh.host
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now()
      AND (fh.job_id IS NULL OR (fh.job_id = :job_id AND fh.epoch = :epoch)
           OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = fh.job_id AND job.state = 'locked' AND job.lease_epoch = fh.epoch))
ORDER BY fh.ready_at
LIMIT :limit
FOR UPDATE OF fh SKIP LOCKED;

-- name: others_hosts
-- The hosts of a crawl that may be asked now and that another walker has claimed, longest waiting first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now
FROM frontier_host AS fh JOIN host AS h ON h.number = fh.host
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now() AND fh.job_id <> :job_id
ORDER BY fh.ready_at
LIMIT :limit;

-- name: due_at_host
-- The waiting URLs of a host that are due, shallow first, with the URL of the page, or the sitemap, that led there.
SELECT f.due, f.depth, f.seq, f.key, f.chk, f.attempts, f.crashes, f.kind, f.path,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier AS f
WHERE f.crawl = :crawl AND f.host = :host AND f.job_id IS NULL AND f.due <= shoal_now() AND f.crashes < 2
ORDER BY f.due, f.depth, f.seq
LIMIT :limit;

-- name: mark_taken
-- Give waiting URLs to a walker.
-- rows: crawl host due depth seq job_id epoch
UPDATE frontier AS f SET job_id = g.job_id, epoch = g.epoch
FROM unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::bigint[], :job_id::text[], :epoch::bigint[])
     AS g (crawl, host, due, depth, seq, job_id, epoch)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = g.due AND f.depth = g.depth AND f.seq = g.seq AND f.job_id IS NULL;

-- name: put_back_lost
-- URLs whose holder is gone wait again.
-- batch: arrays
UPDATE frontier AS f SET job_id = NULL, epoch = NULL, crashes = g.crashes
FROM unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::bigint[], :job_id::text[], :epoch::bigint[],
            :crashes::smallint[])
     AS g (crawl, host, due, depth, seq, job_id, epoch, crashes)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = g.due AND f.depth = g.depth AND f.seq = g.seq
      AND f.job_id = g.job_id AND f.epoch = g.epoch;

-- name: close_urls
-- Settled URLs leave the frontier.
-- rows: crawl host due depth seq job_id epoch
DELETE FROM frontier AS f
USING unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::bigint[], :job_id::text[], :epoch::bigint[])
      AS g (crawl, host, due, depth, seq, job_id, epoch)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = g.due AND f.depth = g.depth AND f.seq = g.seq
      AND f.job_id = g.job_id AND f.epoch = g.epoch
RETURNING f.key, f.chk;

-- name: set_fates
-- What became of URLs.
-- rows: key chk crawl fate
UPDATE fate AS f SET fate = g.fate
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :fate::smallint[]) AS g (crawl, key, chk, fate)
WHERE f.crawl = g.crawl AND f.key = g.key AND f.chk = g.chk;

-- name: put_back_later
-- Taken URLs wait again, not before a moment; those that were not tried, in their old places.
-- rows: crawl host due depth seq job_id epoch retry_in tried
UPDATE frontier AS f
SET job_id = NULL, epoch = NULL, attempts = f.attempts + g.tried,
    due = CASE WHEN g.tried = 1 THEN shoal_now() + g.retry_in ELSE f.due END
FROM unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::bigint[], :job_id::text[], :epoch::bigint[],
            :retry_in::bigint[], :tried::smallint[])
     AS g (crawl, host, due, depth, seq, job_id, epoch, retry_in, tried)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = g.due AND f.depth = g.depth AND f.seq = g.seq
      AND f.job_id = g.job_id AND f.epoch = g.epoch
RETURNING f.host;

-- name: suspect_waiting
-- A URL that was in flight in two crashes, the last one taken first; not at a host that is held.
SELECT f.host, f.due, f.depth, f.seq, f.key, f.chk, f.attempts, f.crashes, f.kind, f.path,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier AS f
WHERE f.crawl = :crawl AND f.crashes >= 2 AND f.job_id IS NULL AND f.due <= shoal_now()
      AND NOT EXISTS (SELECT 1 FROM host AS h WHERE h.number = f.host AND h.held_until > shoal_now())
ORDER BY f.seq DESC
LIMIT 1
FOR UPDATE OF f SKIP LOCKED;

-- name: lost_urls
-- The taken URLs whose holder no longer holds its job. `> ''`: without statistics, only a comparison makes the small
-- index of taken URLs look better than the key.
SELECT host, due, depth, seq, job_id, epoch, crashes
FROM frontier
WHERE crawl = :crawl AND job_id > ''
      AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = frontier.job_id AND job.state = 'locked' AND job.lease_epoch = frontier.epoch)
ORDER BY host, due, depth, seq;

-- name: wake_hosts
-- Something waits at hosts now.
-- rows: crawl host
INSERT INTO frontier_host (crawl, host, ready_at)
SELECT crawl, host, shoal_now() FROM unnest(:crawl::int[], :host::int[]) AS g (crawl, host) ORDER BY crawl, host
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;

-- name: add_skips
-- Raise one walker's counts of skip reasons.
-- rows: crawl holder reason count
INSERT INTO crawl_skip (crawl, holder, reason, count)
SELECT * FROM unnest(:crawl::int[], :holder::text[], :reason::text[], :count::bigint[]) AS g (crawl, holder, reason, count)
ON CONFLICT (crawl, holder, reason) DO UPDATE SET count = crawl_skip.count + excluded.count;

-- name: quarantine_urls
-- Taken URLs go into quarantine.
-- rows: crawl host due depth seq job_id epoch
UPDATE frontier AS f SET job_id = NULL, epoch = NULL, due = 4611686018427387904
FROM unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::bigint[], :job_id::text[], :epoch::bigint[])
     AS g (crawl, host, due, depth, seq, job_id, epoch)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = g.due AND f.depth = g.depth AND f.seq = g.seq
      AND f.job_id = g.job_id AND f.epoch = g.epoch
RETURNING f.key, f.chk;

-- name: free_urls
-- URLs leave quarantine.
-- batch: arrays
UPDATE frontier AS f SET due = 0
FROM unnest(:crawl::int[], :host::int[], :depth::smallint[], :seq::bigint[]) AS g (crawl, host, depth, seq)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = 4611686018427387904 AND f.depth = g.depth AND f.seq = g.seq;

-- name: close_host
-- URLs that wait at a host that has given all it may.
DELETE FROM frontier
WHERE (crawl, host, due, depth, seq) IN
      (SELECT crawl, host, due, depth, seq FROM frontier
       WHERE crawl = :crawl AND host = :host AND job_id IS NULL AND due < 4611686018427387904 LIMIT :limit)
RETURNING key, chk;

-- name: count_host_pages
-- Hosts gave pages.
-- rows: crawl host pages
UPDATE frontier_host AS f SET pages = f.pages + g.pages
FROM unnest(:crawl::int[], :host::int[], :pages::bigint[]) AS g (crawl, host, pages)
WHERE f.crawl = g.crawl AND f.host = g.host;

-- name: lock_hosts
-- The rows of these hosts, locked in the order of their numbers.
SELECT host FROM frontier_host WHERE crawl = :crawl AND host = ANY(:hosts::int[]) ORDER BY host FOR NO KEY UPDATE;

-- name: lock_one_host
-- The row of a host, if nobody has it just now.
SELECT host FROM frontier_host WHERE crawl = :crawl AND host = :host FOR UPDATE SKIP LOCKED;
