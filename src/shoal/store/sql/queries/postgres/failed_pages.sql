-- name: drop_failed_details
-- Delete the details of these pages.
DELETE FROM page_detail WHERE ctid = ANY(ARRAY(
    SELECT d.place FROM unnest(:numbers::bigint[]) AS n (number)
    CROSS JOIN LATERAL (SELECT t.crawl, t.key, t.chk FROM page AS t
                        WHERE t.crawl = :crawl AND t.number >= n.number AND t.number <= n.number
                        ORDER BY t.number OFFSET 0) AS p
    CROSS JOIN LATERAL (SELECT t.ctid AS place FROM page_detail AS t
                        WHERE t.crawl = p.crawl AND t.key = p.key AND t.chk = p.chk OFFSET 0) AS d));

-- name: drop_failed_pages
-- Delete these pages, and return them.
DELETE FROM page WHERE ctid = ANY(ARRAY(
    SELECT p.place FROM unnest(:numbers::bigint[]) AS n (number)
    CROSS JOIN LATERAL (SELECT t.ctid AS place FROM page AS t
                        WHERE t.crawl = :crawl AND t.number >= n.number AND t.number <= n.number
                        ORDER BY t.number OFFSET 0) AS p))
RETURNING key, chk, url, depth, parent, status, error_code, bytes, final_url;

-- name: url_outcomes
-- Return the fates of some URLs of a crawl, each with the status and the error of its page if it has one.
-- rows: crawl key chk
SELECT f.key, f.chk, f.fate, p.number IS NOT NULL AS has_page, p.status, p.error_code, p.error_message
FROM unnest(:crawl::int[], :key::bigint[], :chk::int[]) AS g (crawl, key, chk)
CROSS JOIN LATERAL (SELECT t.key, t.chk, t.fate FROM fate AS t
                    WHERE t.crawl = g.crawl AND t.chk = g.chk AND t.key = g.key OFFSET 0) AS f
LEFT JOIN LATERAL (SELECT r.number, r.status, r.error_code, r.error_message FROM page AS r
                   WHERE r.crawl = g.crawl AND r.key = g.key AND r.chk = g.chk OFFSET 0) AS p ON true;

-- name: sitemaps_among
-- Return the given keys that belong to sitemaps of a crawl.
SELECT s.key FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT t.key FROM sitemap AS t WHERE t.crawl = :crawl AND t.key = k.key ORDER BY t.chk OFFSET 0) AS s;
