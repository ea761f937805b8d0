-- name: pages_after
-- Pages of a crawl in the order in which they were stored.
SELECT * FROM page WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: search_pages
-- Return pages of a crawl from after :number to :upto, in the order in which they were stored, that match every filter.
-- :hop finds a status among the redirects; no URL contains its text, because quotes in JSON strings are escaped.
SELECT * FROM page
WHERE crawl = :crawl AND number > :number AND number <= :upto
      AND (CAST(:low AS INTEGER) IS NULL OR status BETWEEN CAST(:low AS INTEGER) AND CAST(:high AS INTEGER)
           OR redirects LIKE CAST(:hop AS TEXT))
      AND (CAST(:only_errors AS INTEGER) = 0 OR error_code IS NOT NULL)
      AND (CAST(:error AS TEXT) IS NULL OR error_code = CAST(:error AS TEXT))
      AND (CAST(:depth AS INTEGER) IS NULL OR depth = CAST(:depth AS INTEGER))
      AND (CAST(:only_failed AS INTEGER) = 0 OR error_code IS NOT NULL OR status >= 400)
      AND (CAST(:type AS TEXT) IS NULL OR lower(content_type) LIKE CAST(:type AS TEXT) ESCAPE '\')
      AND (CAST(:text AS TEXT) IS NULL OR lower(url) LIKE CAST(:text AS TEXT) ESCAPE '\'
           OR lower(title) LIKE CAST(:text AS TEXT) ESCAPE '\')
ORDER BY number
LIMIT :limit;

-- name: rank_pages
-- The numbers by which pages are sorted, of those that match every filter: see search_pages.
SELECT number, key, status, depth, bytes, duration_ms, word_count,
       coalesce(links_internal, 0) + coalesce(links_external, 0) AS links FROM page
WHERE crawl = :crawl AND number > :number AND number <= :upto
      AND (CAST(:low AS INTEGER) IS NULL OR status BETWEEN CAST(:low AS INTEGER) AND CAST(:high AS INTEGER)
           OR redirects LIKE CAST(:hop AS TEXT))
      AND (CAST(:only_errors AS INTEGER) = 0 OR error_code IS NOT NULL)
      AND (CAST(:error AS TEXT) IS NULL OR error_code = CAST(:error AS TEXT))
      AND (CAST(:depth AS INTEGER) IS NULL OR depth = CAST(:depth AS INTEGER))
      AND (CAST(:only_failed AS INTEGER) = 0 OR error_code IS NOT NULL OR status >= 400)
      AND (CAST(:type AS TEXT) IS NULL OR lower(content_type) LIKE CAST(:type AS TEXT) ESCAPE '\')
      AND (CAST(:text AS TEXT) IS NULL OR lower(url) LIKE CAST(:text AS TEXT) ESCAPE '\'
           OR lower(title) LIKE CAST(:text AS TEXT) ESCAPE '\')
ORDER BY number
LIMIT :limit;

-- name: page_number_after
-- Return the number of a page of a crawl, :skip pages after the first one after :number.
SELECT number FROM page WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT 1 OFFSET :skip;

-- name: page_facts_after
-- The facts of pages that charts count, in the order in which the pages were stored.
SELECT number, url, depth, status, duration_ms, bytes, content_type FROM page
WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: page_outlines_after
-- What a comparison of two crawls needs of pages, in the order in which they were stored.
SELECT number, url, status, content_hash, title, robots, canonical, data IS NOT NULL AS has_data FROM page
WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: page_numbered
-- One page of a crawl. The range leaves the planner only the index by number.
SELECT * FROM page WHERE crawl = :crawl AND number >= :number AND number <= :number ORDER BY number LIMIT :limit;

-- name: page_number
-- The number of a URL's page.
SELECT number FROM page WHERE crawl = :crawl AND key = :key AND chk >= :chk AND chk <= :chk ORDER BY chk;

-- name: links_after
-- The links of pages of a crawl from after :number to :upto, in the order in which the pages were stored.
SELECT number, key, links FROM page WHERE crawl = :crawl AND number > :number AND number <= :upto AND links IS NOT NULL
ORDER BY number;

-- name: last_page_number
-- Return the number of the page that was stored last.
SELECT coalesce((SELECT number FROM page WHERE crawl = :crawl ORDER BY number DESC LIMIT 1), 0) AS number;

-- name: failed_pages_after
-- Return failed pages from after :number to :upto, in the order in which they were stored.
SELECT number, url, status, error_code FROM page
WHERE crawl = :crawl AND number > :number AND number <= :upto AND (error_code IS NOT NULL OR status >= 400)
ORDER BY number
LIMIT :limit;
