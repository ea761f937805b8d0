-- name: drop_failed_details
-- Delete the details of these pages.
DELETE FROM page_detail WHERE crawl = :crawl AND (key, chk) IN
    (SELECT p.key, p.chk FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl);

-- name: drop_failed_pages
-- Delete these pages, and return them.
DELETE FROM page WHERE crawl = :crawl AND number IN (SELECT value FROM json_each(:numbers))
RETURNING key, chk, url, depth, parent, status, error_code, bytes, final_url;

-- name: url_outcomes
-- Return the fates of some URLs of a crawl, each with the status and the error of its page if it has one.
-- rows: crawl key chk
SELECT f.key, f.chk, f.fate, p.number IS NOT NULL AS has_page, p.status, p.error_code, p.error_message
FROM fate AS f LEFT JOIN page AS p ON p.crawl = f.crawl AND p.key = f.key AND p.chk = f.chk
WHERE f.crawl = :crawl AND f.key = :key AND f.chk = :chk;

-- name: sitemaps_among
-- Return the given keys that belong to sitemaps of a crawl.
SELECT s.key FROM json_each(:keys) AS k CROSS JOIN sitemap AS s ON s.crawl = :crawl AND s.key = k.value;
