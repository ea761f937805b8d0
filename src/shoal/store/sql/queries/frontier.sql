-- name: set_host_ready
-- When a host may be asked again (NULL: nothing waits), and by whom it is claimed.
UPDATE frontier_host SET ready_at = :ready_at, job_id = :job_id, epoch = :epoch WHERE crawl = :crawl AND host = :host;

-- name: free_host_claims
-- A walker lets go of its hosts.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch;

-- name: next_due_at_host
-- When the next waiting URL of a host is due.
SELECT due FROM frontier WHERE crawl = :crawl AND host = :host AND job_id IS NULL AND due < 4611686018427387904
ORDER BY due LIMIT 1;

-- name: release_urls
-- A walker puts back everything that it still has.
UPDATE frontier SET job_id = NULL, epoch = NULL
WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch
RETURNING host;

-- name: next_ready
-- When the next host of a crawl is ready, and the time now.
SELECT ready_at, shoal_now() AS now FROM frontier_host
WHERE crawl = :crawl AND ready_at IS NOT NULL ORDER BY ready_at LIMIT 1;

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

-- name: quarantined_at_host
-- The URLs of a host that are in quarantine.
SELECT depth, seq, key, chk, path FROM frontier WHERE crawl = :crawl AND host = :host AND due = 4611686018427387904;

-- name: taken_at_host
-- How many URLs of a host are under way. `+ 0` keeps the key, and with it all that waits there, out of it.
SELECT count(*) AS count FROM frontier WHERE crawl = :crawl AND job_id > '' AND host + 0 = :host;

-- name: live_walkers
-- How many walkers of a run hold a lease.
SELECT count(*) AS count FROM job AS j
WHERE j.run_id = (SELECT k.run_id FROM job AS k WHERE k.id = :job_id) AND j.state = 'locked';

-- name: let_go_of_host
-- A walker leaves a host to others.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE crawl = :crawl AND host = :host;
