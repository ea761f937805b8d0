-- name: known_keys
-- Those of these keys that are known. CROSS JOIN: the keys lead, never the table.
SELECT f.key, f.chk FROM json_each(:keys) AS k CROSS JOIN fate AS f ON f.crawl = :crawl AND f.key = k.value;

-- name: reserve_seq
-- Take a block of sequence numbers; the first of them.
UPDATE frontier_seq SET value = value + :count RETURNING value - :count + 1;

-- name: insert_fates
-- Record new URLs.
INSERT INTO fate (crawl, key, chk, fate) VALUES (:crawl, :key, :chk, :fate);

-- name: insert_waiting
-- Add new URLs to those that wait.
INSERT INTO frontier (crawl, host, due, depth, seq, key, chk, parent, path)
VALUES (:crawl, :host, 0, :depth, :seq, :key, :chk, :parent, :path);

-- name: ready_hosts
-- The hosts of a crawl that may be asked now and that no other live walker has claimed, longest waiting first.
SELECT fh.host, h.origin, h.delay, h.next_at - shoal_now() AS busy_for, h.robots_at, shoal_now() AS now
FROM frontier_host AS fh JOIN host AS h ON h.number = fh.host
WHERE fh.crawl = :crawl AND fh.ready_at <= shoal_now()
      AND (fh.job_id IS NULL OR (fh.job_id = :job_id AND fh.epoch = :epoch)
           OR NOT EXISTS (SELECT 1 FROM job WHERE job.id = fh.job_id AND job.state = 'locked' AND job.lease_epoch = fh.epoch))
ORDER BY fh.ready_at
LIMIT :limit;

-- name: due_at_host
-- The waiting URLs of a host that are due, shallow first, with the URL of the page that linked there.
SELECT f.due, f.depth, f.seq, f.key, f.chk, f.attempts, f.crashes, f.path,
       (SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent LIMIT 1) AS parent_url
FROM frontier AS f
WHERE f.crawl = :crawl AND f.host = :host AND f.job_id IS NULL AND f.due <= shoal_now()
ORDER BY f.due, f.depth, f.seq
LIMIT :limit;

-- name: mark_taken
-- Give a waiting URL to a walker.
UPDATE frontier SET job_id = :job_id, epoch = :epoch
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id IS NULL;

-- name: put_back_lost
-- A URL whose holder is gone waits again.
UPDATE frontier SET job_id = NULL, epoch = NULL, crashes = :crashes
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq;

-- name: close_urls
-- A settled URL leaves the frontier.
DELETE FROM frontier
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id = :job_id AND epoch = :epoch;

-- name: set_fates
-- What became of a URL.
UPDATE fate SET fate = :fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: put_back_later
-- A taken URL waits again, not before a moment.
UPDATE frontier SET job_id = NULL, epoch = NULL, due = shoal_now() + :retry_in, attempts = attempts + 1
WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq AND job_id = :job_id AND epoch = :epoch;
