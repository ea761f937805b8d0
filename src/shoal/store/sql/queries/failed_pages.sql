-- name: last_page_number
-- Return the number of the page that was stored last.
SELECT coalesce((SELECT number FROM page WHERE crawl = :crawl ORDER BY number DESC LIMIT 1), 0) AS number;

-- name: failed_pages_after
-- Return failed pages, in the order in which they were stored.
SELECT number, url, status, error_code FROM page
WHERE crawl = :crawl AND number > :number AND (error_code IS NOT NULL OR status >= 400)
ORDER BY number
LIMIT :limit;
