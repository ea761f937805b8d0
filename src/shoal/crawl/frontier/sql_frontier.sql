-- name: key_seed
-- Return the seed of a crawl's URL keys.
SELECT key_seed FROM crawl WHERE number = :crawl;

-- name: hosts_of_holder
-- Return the hosts that a walker has claimed, and the hosts of the URLs that it has taken.
SELECT host FROM frontier_host WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch
UNION
SELECT host FROM frontier_touched WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch;

-- name: any_held
-- Return whether a walker has taken URLs.
SELECT 1 FROM frontier_touched WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch LIMIT 1;

-- name: release_urls
-- Return all URLs of a walker to the frontier. `> ''` makes the planner use the small index of taken URLs.
UPDATE frontier_touched SET job_id = '', epoch = 0
WHERE crawl = :crawl AND job_id = :job_id AND job_id > '' AND epoch = :epoch
RETURNING host;

-- name: next_ready
-- Return the time when the next host of a crawl is ready, and the current time. With a job, only hosts that are
-- unclaimed or claimed by that job count.
SELECT ready_at, shoal_now() AS now FROM frontier_host
WHERE crawl = :crawl AND ready_at IS NOT NULL 
      AND (:job_id = '' OR job_id IS NULL OR job_id = :job_id)
ORDER BY ready_at
LIMIT 1;

-- name: insert_sitemap
-- Store the result of fetching a sitemap.
INSERT INTO sitemap (crawl, key, chk, url, fetched_at, status, listed, problem, entries)
VALUES (:crawl, :key, :chk, :url, :fetched_at, :status, :listed, :problem, :entries)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: insert_trap
-- Quarantine a pattern, unless a user has already decided about the pattern.
INSERT INTO trap (crawl, pattern, state, sample) VALUES (:crawl, :pattern, 'quarantined', :sample)
ON CONFLICT (crawl, pattern) DO NOTHING;

-- name: add_trap_points
-- Add points to a pattern that may be a trap, or take some away; return its score.
INSERT INTO trap_score AS s (crawl, pattern, score)
VALUES (:crawl, :pattern, CASE WHEN :points::bigint > 0 THEN :points::bigint ELSE 0 END)
ON CONFLICT (crawl, pattern)
DO UPDATE SET score = CASE WHEN s.score + :points::bigint > 0 THEN s.score + :points::bigint ELSE 0 END
RETURNING score;

-- name: drop_trap_points
-- Take all points away from a pattern.
UPDATE trap_score SET score = 0 WHERE crawl = :crawl AND pattern = :pattern;

-- name: traps
-- The patterns of a crawl that were ever quarantined.
SELECT pattern, state, sample, count FROM trap WHERE crawl = :crawl ORDER BY pattern;

-- name: count_trap
-- Add to the number of URLs held by a pattern.
UPDATE trap SET count = count + :count WHERE crawl = :crawl AND pattern = :pattern;

-- name: free_trap
-- Release a pattern from quarantine.
UPDATE trap SET state = 'released' WHERE crawl = :crawl AND pattern = :pattern AND state = 'quarantined';

-- name: taken_at_hosts
-- Return how many URLs of each host are in flight.
SELECT host, count(*) AS count FROM frontier_touched WHERE crawl = :crawl AND job_id > '' GROUP BY host;

-- name: taken_count
-- Return how many URLs of a crawl are taken.
SELECT count(*) AS taken FROM frontier_touched WHERE crawl = :crawl AND job_id > '';

-- name: live_walkers
-- Return how many walkers of a run hold a lease.
SELECT count(*) AS count FROM job AS j
WHERE j.run_id = (SELECT k.run_id FROM job AS k WHERE k.id = :job_id) AND j.run_id IS NOT NULL AND j.finished_at IS NULL
      AND CASE WHEN j.state = 'locked' THEN TRUE ELSE FALSE END;

-- name: held_hosts
-- Return hosts of a crawl that are on hold and have waiting URLs, the longest hold first. `> 0` repeats the condition
-- of the index, because the index would not be used otherwise.
SELECT h.origin, h.held_until, h.held_status
FROM host AS h
WHERE h.held_until > 0 AND h.held_until > shoal_now()
      AND (SELECT fh.ready_at FROM frontier_host AS fh WHERE fh.crawl = :crawl AND fh.host = h.number) IS NOT NULL
ORDER BY h.held_until DESC
LIMIT :most;
