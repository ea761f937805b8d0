-- name: drop_failed_details
-- Drop the details of these pages.
DELETE FROM page_detail AS d USING page AS p
WHERE p.crawl = :crawl AND p.number = ANY(:numbers::bigint[]) AND d.crawl = p.crawl AND d.key = p.key AND d.chk = p.chk;

-- name: drop_failed_pages
-- Drop these pages, and say what they were.
DELETE FROM page WHERE crawl = :crawl AND number = ANY(:numbers::bigint[])
RETURNING key, chk, url, depth, parent, status, error_code, bytes, final_url;

-- name: url_outcomes
-- What became of some URLs of a crawl, each with the status and the error of its page if it has one.
-- rows: crawl key chk
SELECT f.key, f.chk, f.fate, p.number IS NOT NULL AS has_page, p.status, p.error_code, p.error_message
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[]) AS g (crawl, key, chk)
CROSS JOIN LATERAL (SELECT t.key, t.chk, t.fate FROM fate AS t
                    WHERE t.crawl = g.crawl AND t.chk = g.chk AND t.key = g.key OFFSET 0) AS f
LEFT JOIN LATERAL (SELECT r.number, r.status, r.error_code, r.error_message FROM page AS r
                   WHERE r.crawl = g.crawl AND r.key = g.key AND r.chk = g.chk OFFSET 0) AS p ON true;

-- name: sitemaps_among
-- Those of these keys that are sitemaps' of a crawl.
SELECT key FROM sitemap WHERE crawl = :crawl AND key = ANY(:keys::bigint[]);
