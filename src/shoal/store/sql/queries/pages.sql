-- name: pages_after
-- Pages of a crawl in the order in which they were stored.
SELECT * FROM page WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: some_pages_after
-- Return pages of a crawl in the order in which they were stored, filtered by a status from :low to :high and by
-- error.
SELECT * FROM page
WHERE crawl = :crawl AND number > :number
      AND (CAST(:low AS INTEGER) IS NULL OR status BETWEEN CAST(:low AS INTEGER) AND CAST(:high AS INTEGER))
      AND (CAST(:only_errors AS INTEGER) = 0 OR error_code IS NOT NULL)
      AND (CAST(:error AS TEXT) IS NULL OR error_code = CAST(:error AS TEXT))
ORDER BY number
LIMIT :limit;

-- name: links_after
-- The links of pages of a crawl, in the order in which the pages were stored.
SELECT number, key, links FROM page WHERE crawl = :crawl AND number > :number AND links IS NOT NULL
ORDER BY number LIMIT :limit;
