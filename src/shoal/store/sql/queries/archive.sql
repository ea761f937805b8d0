-- name: frontier_recount
-- The open URLs of a crawl, counted; not those in quarantine. The time is asked once, not per row.
SELECT count(CASE WHEN job_id IS NULL AND due <= (SELECT shoal_now()) THEN 1 END) AS waiting,
       count(CASE WHEN job_id IS NULL AND due > (SELECT shoal_now()) THEN 1 END) AS later,
       count(job_id) AS taken,
       count(DISTINCT CASE WHEN job_id IS NULL THEN host END) AS hosts
FROM frontier WHERE crawl = :crawl AND due < 4611686018427387904;

-- name: fate_recount
-- The settled URLs of a crawl, counted by fate.
SELECT fate, count(*) AS count FROM fate WHERE crawl = :crawl AND fate <> 0 GROUP BY fate ORDER BY fate;

-- name: taken_count
-- How many URLs of a crawl are taken.
SELECT count(*) AS taken FROM frontier WHERE crawl = :crawl AND job_id IS NOT NULL;

-- name: fate_of
-- What became of one URL.
SELECT fate FROM fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: kept_url
-- One kept URL: a walk over what its host has, for keys are not indexed there.
SELECT h.origin, f.path, f.depth, f.due, f.parent, f.attempts, f.crashes, f.kind, f.job_id, f.epoch,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = f.crawl AND s.key = f.parent LIMIT 1)) AS parent_url,
       (SELECT fh.ready_at FROM frontier_host AS fh WHERE fh.crawl = f.crawl AND fh.host = f.host) AS ready_at,
       CASE WHEN h.held_until > shoal_now() THEN h.held_until END AS held_until, h.held_status
FROM host AS h JOIN frontier AS f ON f.crawl = :crawl AND f.host = h.number
WHERE h.origin = :origin AND f.key = :key AND f.chk = :chk;

-- name: sitemap_of
-- What is kept of a sitemap.
SELECT url, fetched_at, status, listed, problem FROM sitemap WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: drop_sitemaps
-- Drop the sitemaps of a crawl.
DELETE FROM sitemap WHERE crawl = :crawl;

-- name: page_number
-- The number of a URL's page.
SELECT number FROM page WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: urls_after
-- Kept URLs after a place, in the order in which each host's would be taken.
SELECT f.host, f.due, f.depth, f.seq, f.key, f.chk, f.parent, f.attempts, f.crashes, f.kind, f.path,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin
FROM frontier AS f
WHERE f.crawl = :crawl AND (f.host, f.due, f.depth, f.seq) > (:host, :due, :depth, :seq)
ORDER BY f.host, f.due, f.depth, f.seq
LIMIT :limit;

-- name: keys_after
-- URLs of which only the key is known, after a key.
SELECT key, chk, fate FROM fate
WHERE crawl = :crawl AND fate NOT IN (0, 3) AND (key, chk) > (:key, :chk)
ORDER BY key, chk
LIMIT :limit;

-- name: receive_crawl
-- Make room for a crawl of another store, unless its id is taken.
INSERT INTO crawl (id, state, state_reason, project, config, named, priority, key_seed, created_at, finished_at)
VALUES (:id, 'stopped', :reason, :project, :config, :named, :priority, :key_seed, shoal_now(), shoal_now())
ON CONFLICT (id) DO NOTHING
RETURNING number;

-- name: admit_crawl
-- A received crawl is whole, and stands where it stood.
UPDATE crawl
SET state = :state, state_reason = :state_reason, created_at = :created_at, started_at = :started_at,
    finished_at = :finished_at
WHERE number = :crawl AND state = 'stopped' AND state_reason = :loading;

-- name: last_of_some_fates
-- The last of the first :limit keys of a crawl.
SELECT key, chk FROM (SELECT key, chk FROM fate WHERE crawl = :crawl ORDER BY key, chk LIMIT :limit) AS chosen
ORDER BY key DESC, chk DESC
LIMIT 1;

-- name: drop_fates_up_to
-- Forget what became of URLs, up to a key.
DELETE FROM fate WHERE crawl = :crawl AND (key, chk) <= (:key, :chk);

-- name: keep_trap
-- A pattern as it was decided elsewhere.
INSERT INTO trap (crawl, pattern, state, sample, count) VALUES (:crawl, :pattern, :state, :sample, :count)
ON CONFLICT (crawl, pattern) DO NOTHING;

-- name: drop_traps
-- Forget the patterns of a crawl.
DELETE FROM trap WHERE crawl = :crawl;

-- name: drop_frontier_hosts
-- Forget the hosts of a crawl.
DELETE FROM frontier_host WHERE crawl = :crawl;

-- name: last_of_some_pages
-- The last of the first :limit pages of a crawl.
SELECT max(number) AS number FROM (SELECT number FROM page WHERE crawl = :crawl ORDER BY number LIMIT :limit) AS chosen;

-- name: drop_pages_up_to
-- Drop pages of a crawl, up to a number.
DELETE FROM page WHERE crawl = :crawl AND number <= :number;

-- name: drop_counters
-- Drop the counters of a crawl.
DELETE FROM crawl_counter WHERE crawl = :crawl;

-- name: drop_skips
-- Drop the skip counts of a crawl.
DELETE FROM crawl_skip WHERE crawl = :crawl;

-- name: drop_jobs
-- Drop the jobs of a run, and with them their history.
DELETE FROM job WHERE run_id = :run_id;

-- name: drop_crawl
-- Drop a crawl.
DELETE FROM crawl WHERE number = :number;
