-- name: set_frontier_skips
-- Mirror how many URLs were skipped for each reason.
-- rows: crawl holder reason count
INSERT INTO crawl_skip (crawl, holder, reason, count) VALUES (:crawl, :holder, :reason, :count)
ON CONFLICT (crawl, holder, reason) DO UPDATE SET count = excluded.count;

-- name: locked_epochs
-- Return which of these jobs are locked, with their epochs.
SELECT id, lease_epoch FROM job WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'locked';

-- name: host_origins
-- Return the origins of hosts.
SELECT number, origin FROM host WHERE number IN (SELECT value FROM json_each(:hosts));

-- name: held_among_hosts
-- Return the hosts among these that are on hold, the longest hold first.
SELECT origin, held_until, held_status FROM host
WHERE number IN (SELECT value FROM json_each(:hosts)) AND held_until > shoal_now()
ORDER BY held_until DESC, origin
LIMIT :most;

-- name: parent_urls
-- Return the URLs of the pages or sitemaps with these keys.
SELECT k.value AS key,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = :crawl AND p.key = k.value ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = :crawl AND s.key = k.value LIMIT 1)) AS url
FROM json_each(:keys) AS k;

-- name: forget_held
-- Reset the number of URLs that each trap pattern holds: the frontier with these URLs is lost, and they are found
-- again.
UPDATE trap SET count = 0 WHERE crawl = :crawl AND state = 'quarantined';
