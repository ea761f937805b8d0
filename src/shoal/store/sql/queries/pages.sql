-- name: pages_after
-- Pages of a crawl in the order in which they were stored.
SELECT * FROM page WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;
