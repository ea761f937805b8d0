-- name: rows_of_crawls
-- Return how many pages and URLs all crawls have, by their counters.
SELECT CAST(coalesce(sum(pages), 0) AS BIGINT) AS page, CAST(coalesce(sum(opened), 0) AS BIGINT) AS fate FROM crawl_counter;
