-- name: last_page_number
-- The number of the page that was stored last.
SELECT coalesce(max(number), 0) AS number FROM page WHERE crawl = :crawl;

-- name: failed_pages_after
-- Pages that gave no good answer, in the order in which they were stored.
SELECT number, url, status, error_code FROM page
WHERE crawl = :crawl AND number > :number AND (error_code IS NOT NULL OR status >= 400)
ORDER BY number
LIMIT :limit;
