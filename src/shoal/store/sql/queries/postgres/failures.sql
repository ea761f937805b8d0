-- name: drop_failed_details
-- Drop the details of these pages.
DELETE FROM page_detail AS d USING page AS p
WHERE p.crawl = :crawl AND p.number = ANY(:numbers::bigint[]) AND d.crawl = p.crawl AND d.key = p.key AND d.chk = p.chk;

-- name: drop_failed_pages
-- Drop these pages, and say what they were.
DELETE FROM page WHERE crawl = :crawl AND number = ANY(:numbers::bigint[])
RETURNING key, chk, url, depth, parent, status, error_code, bytes, final_url;

-- name: sitemaps_among
-- Those of these keys that are sitemaps' of a crawl.
SELECT key FROM sitemap WHERE crawl = :crawl AND key = ANY(:keys::bigint[]);
