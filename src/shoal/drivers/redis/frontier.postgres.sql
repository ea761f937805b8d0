-- name: set_frontier_skips
-- Mirror how many URLs were skipped for each reason.
-- rows: crawl holder reason count
INSERT INTO crawl_skip (crawl, holder, reason, count)
SELECT * FROM unnest(:crawl::int[], :holder::text[], :reason::text[], :count::bigint[]) AS g (crawl, holder, reason, count)
ORDER BY crawl, holder, reason
ON CONFLICT (crawl, holder, reason) DO UPDATE SET count = excluded.count;

-- name: locked_epochs
-- Return which of these jobs are locked, with their epochs.
SELECT id, lease_epoch FROM job WHERE id = ANY(:ids::text[]) AND CASE WHEN state = 'locked' THEN TRUE ELSE FALSE END;

-- name: host_origins
-- Return the origins of hosts.
SELECT number, origin FROM host WHERE number = ANY(:hosts::int[]);

-- name: held_among_hosts
-- Return the hosts among these that are on hold, the longest hold first.
SELECT origin, held_until, held_status FROM host
WHERE number = ANY(:hosts::int[]) AND held_until > shoal_now()
ORDER BY held_until DESC, origin
LIMIT :most;

-- name: parent_urls
-- Return the URLs of the pages or sitemaps with these keys.
SELECT k.key,
       coalesce((SELECT p.url FROM page AS p WHERE p.crawl = :crawl AND p.key = k.key ORDER BY p.chk LIMIT 1),
                (SELECT s.url FROM sitemap AS s WHERE s.crawl = :crawl AND s.key = k.key LIMIT 1)) AS url
FROM unnest(:keys::bigint[]) AS k (key);

-- name: forget_held
-- Reset the number of URLs that each trap pattern holds: the frontier with these URLs is lost, and they are found
-- again.
UPDATE trap SET count = 0
WHERE crawl = :crawl AND pattern = ANY(ARRAY(SELECT t.pattern FROM trap AS t
                                             WHERE t.crawl = :crawl AND t.state = 'quarantined'
                                             ORDER BY t.pattern FOR NO KEY UPDATE));
