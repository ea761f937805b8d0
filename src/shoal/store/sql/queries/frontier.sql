-- name: suspect_waiting
-- A URL that was in flight in two crashes, the last one taken first.
SELECT f.host, f.due, f.depth, f.seq, f.key, f.chk, f.attempts, f.crashes, f.path,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin,
       (SELECT p.url FROM page AS p WHERE p.crawl = f.crawl AND p.key = f.parent LIMIT 1) AS parent_url
FROM frontier AS f
WHERE f.crawl = :crawl AND f.crashes >= 2 AND f.job_id IS NULL AND f.due <= shoal_now()
ORDER BY f.seq DESC
LIMIT 1;

-- name: lost_urls
-- The taken URLs whose holder no longer holds its job.
SELECT host, due, depth, seq, job_id, epoch, crashes
FROM frontier
WHERE crawl = :crawl AND job_id IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM job WHERE job.id = frontier.job_id AND job.state = 'locked' AND job.lease_epoch = frontier.epoch);

-- name: wake_host
-- Something waits at a host, not before a moment.
INSERT INTO frontier_host (crawl, host, ready_at) VALUES (:crawl, :host, :ready_at)
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;

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
