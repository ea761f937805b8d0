-- name: known_keys
-- Those of these keys that are known. CROSS JOIN: the keys lead, never the table.
SELECT f.key, f.chk, f.fate FROM json_each(:keys) AS k CROSS JOIN fate AS f ON f.crawl = :crawl AND f.key = k.value;

-- name: reserve_seq
-- Take a block of sequence numbers; the first of them.
UPDATE frontier_seq SET value = value + :count RETURNING value - :count + 1;

-- name: insert_fates
-- Record new URLs.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate) VALUES (:crawl, :key, :chk, :fate);

-- name: keep_fates
-- Record URLs that are not known, with what became of them.
-- rows: key chk crawl fate
INSERT INTO fate (crawl, key, chk, fate) VALUES (:crawl, :key, :chk, :fate) ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: insert_waiting
-- Add new URLs to those that wait.
-- rows: crawl host due depth seq key chk parent kind path
INSERT INTO frontier (crawl, host, due, depth, seq, key, chk, parent, kind, path)
VALUES (:crawl, :host, :due, :depth, :seq, :key, :chk, :parent, :kind, :path);

-- name: ready_hosts
-- The hosts of a crawl that may be asked now and that no other live walker has claimed, longest waiting first.
SELECT fh.host, fh.pages, fh.ready_at, fh.job_id, h.origin, h.next_at, h.delay, h.held_until, h.backoff, h.latency,
       h.latency_at, h.robots_at, shoal_now() AS now
FROM frontier_host AS fh JOIN host AS h ON h.number = fh.host
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now()
      AND (fh.job_id IS NULL OR (fh.job_id = :job_id AND fh.epoch = :epoch)
           OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = fh.job_id AND job.state = 'locked' AND job.lease_epoch = fh.epoch))
ORDER BY fh.ready_at
LIMIT :limit;

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
-- Give a waiting URL to a walker.
-- rows: crawl host due depth seq job_id epoch
UPDATE frontier SET job_id = :job_id, epoch = :epoch
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id IS NULL;

-- name: put_back_lost
-- A URL whose holder is gone waits again.
UPDATE frontier SET job_id = NULL, epoch = NULL, crashes = :crashes
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id = :job_id AND epoch = :epoch;

-- name: close_urls
-- A settled URL leaves the frontier.
-- rows: crawl host due depth seq job_id epoch
DELETE FROM frontier
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id = :job_id AND epoch = :epoch
RETURNING key, chk;

-- name: set_fates
-- What became of a URL.
-- rows: key chk crawl fate
UPDATE fate SET fate = :fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: put_back_later
-- A taken URL waits again, not before a moment; one that was not tried, in its old place.
-- rows: crawl host due depth seq job_id epoch retry_in tried
UPDATE frontier
SET job_id = NULL, epoch = NULL, attempts = attempts + :tried,
    due = CASE WHEN :tried THEN shoal_now() + :retry_in ELSE due END
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id = :job_id AND epoch = :epoch
RETURNING host;

-- name: suspect_waiting
-- A URL that was in flight in two crashes, the last one taken first; not at a host that is held.
SELECT f.host, f.due, f.depth, f.seq, f.key, f.chk, f.attempts, f.crashes, f.kind, f.path,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url
FROM frontier AS f INDEXED BY frontier_suspect
WHERE f.crawl = :crawl AND f.crashes >= 2 AND f.job_id IS NULL AND f.due <= shoal_now()
      AND NOT EXISTS (SELECT 1 FROM host AS h WHERE h.number = f.host AND h.held_until > shoal_now())
ORDER BY f.seq DESC
LIMIT 1;

-- name: lost_urls
-- The taken URLs whose holder no longer holds its job.
SELECT host, due, depth, seq, job_id, epoch, crashes
FROM frontier INDEXED BY frontier_taken
WHERE crawl = :crawl AND job_id > ''
      AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = frontier.job_id AND job.state = 'locked' AND job.lease_epoch = frontier.epoch);

-- name: wake_hosts
-- Something waits at a host now.
-- rows: crawl host
INSERT INTO frontier_host (crawl, host, ready_at) VALUES (:crawl, :host, shoal_now())
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;

-- name: add_skips
-- Raise one walker's count of a skip reason.
-- rows: crawl holder reason count
INSERT INTO crawl_skip (crawl, holder, reason, count) VALUES (:crawl, :holder, :reason, :count)
ON CONFLICT (crawl, holder, reason) DO UPDATE SET count = crawl_skip.count + excluded.count;

-- name: quarantine_urls
-- A taken URL goes into quarantine.
-- rows: crawl host due depth seq job_id epoch
UPDATE frontier SET job_id = NULL, epoch = NULL, due = 4611686018427387904
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id = :job_id AND epoch = :epoch
RETURNING key, chk;

-- name: free_urls
-- A URL leaves quarantine.
UPDATE frontier SET due = 0
WHERE crawl = :crawl AND host = :host AND due = 4611686018427387904 AND depth = :depth AND seq = :seq;

-- name: close_host
-- URLs that wait at a host that has given all it may.
DELETE FROM frontier
WHERE (crawl, host, due, depth, seq) IN
      (SELECT crawl, host, due, depth, seq FROM frontier
       WHERE crawl = :crawl AND host = :host AND job_id IS NULL AND due < 4611686018427387904 LIMIT :limit)
RETURNING key, chk;

-- name: count_host_pages
-- A host gave pages.
-- rows: crawl host pages
UPDATE frontier_host SET pages = pages + :pages WHERE crawl = :crawl AND host = :host;

-- name: lock_hosts
-- The rows of these hosts; the write lock is held already.
SELECT host FROM frontier_host WHERE crawl = :crawl AND host IN (SELECT value FROM json_each(:hosts)) ORDER BY host;

-- name: lock_one_host
-- The row of a host; the write lock is held already.
SELECT host FROM frontier_host WHERE crawl = :crawl AND host = :host;
