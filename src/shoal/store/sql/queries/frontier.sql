-- name: key_seed
-- What the keys of a crawl are seeded with.
SELECT key_seed FROM crawl WHERE number = :crawl;

-- name: hosts_of_holder
-- The hosts that a walker has claimed, or has URLs of.
SELECT host FROM frontier_host WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch
UNION
SELECT host FROM frontier_touched WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch;

-- name: any_held
-- Whether a walker has a URL in hand.
SELECT 1 FROM frontier_touched WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch LIMIT 1;

-- name: free_host_claims
-- A walker lets go of its hosts.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch;

-- name: release_urls
-- A walker puts back everything that it still has. `> ''`: only so is the small index of taken URLs known to do.
UPDATE frontier_touched SET job_id = '', epoch = 0
WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch
RETURNING host;

-- name: next_ready
-- When the next host of a crawl is ready, and the time now; with a job, only of hosts that it, or nobody, has claimed.
SELECT ready_at, shoal_now() AS now FROM frontier_host
WHERE crawl = :crawl AND ready_at IS NOT NULL 
      AND (:job_id = '' OR job_id IS NULL OR job_id = :job_id)
ORDER BY ready_at
LIMIT 1;

-- name: insert_sitemap
-- A sitemap was asked for.
INSERT INTO sitemap (crawl, key, chk, url, fetched_at, status, listed, problem)
VALUES (:crawl, :key, :chk, :url, :fetched_at, :status, :listed, :problem)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: insert_trap
-- A pattern goes into quarantine, unless somebody decided about it.
INSERT INTO trap (crawl, pattern, state, sample) VALUES (:crawl, :pattern, 'quarantined', :sample)
ON CONFLICT (crawl, pattern) DO NOTHING;

-- name: traps
-- The patterns of a crawl that were ever quarantined.
SELECT pattern, state, sample, count FROM trap WHERE crawl = :crawl ORDER BY pattern;

-- name: count_trap
-- More URLs of a pattern are held.
UPDATE trap SET count = count + :count WHERE crawl = :crawl AND pattern = :pattern;

-- name: free_trap
-- A person releases a pattern.
UPDATE trap SET state = 'released' WHERE crawl = :crawl AND pattern = :pattern AND state = 'quarantined';

-- name: taken_at_hosts
-- How many URLs of each host are under way.
SELECT host, count(*) AS count FROM frontier_touched WHERE crawl = :crawl AND job_id > '' GROUP BY host;

-- name: taken_count
-- How many URLs of a crawl are taken.
SELECT count(*) AS taken FROM frontier_touched WHERE crawl = :crawl AND job_id > '';

-- name: live_walkers
-- How many walkers of a run hold a lease.
SELECT count(*) AS count FROM job AS j
WHERE j.run_id = (SELECT k.run_id FROM job AS k WHERE k.id = :job_id) AND j.run_id IS NOT NULL AND j.finished_at IS NULL
      AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END;
