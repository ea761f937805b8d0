-- name: set_host_ready
-- When a host may be asked again (NULL: nothing waits), and by whom it is claimed.
UPDATE frontier_host SET ready_at = :ready_at, job_id = :job_id, epoch = :epoch WHERE crawl = :crawl AND host = :host;

-- name: free_host_claims
-- A walker lets go of its hosts.
UPDATE frontier_host SET job_id = NULL, epoch = NULL WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch;

-- name: next_due_at_host
-- When the next waiting URL of a host is due.
SELECT due FROM frontier WHERE crawl = :crawl AND host = :host AND job_id IS NULL ORDER BY due LIMIT 1;

-- name: release_urls
-- A walker puts back everything that it still has.
UPDATE frontier SET job_id = NULL, epoch = NULL
WHERE crawl = :crawl AND job_id = :job_id AND epoch = :epoch
RETURNING host;

-- name: next_ready
-- When the next host of a crawl is ready, and the time now.
SELECT ready_at, shoal_now() AS now FROM frontier_host
WHERE crawl = :crawl AND ready_at IS NOT NULL ORDER BY ready_at LIMIT 1;

-- name: now
-- The store's clock.
SELECT shoal_now() AS now;
