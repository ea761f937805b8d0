-- name: insert_pages
-- Store a page, unless it is there.
INSERT INTO page (crawl, key, chk, url, final_url, status, depth, parent, content_type, encoding, bytes, title, description,
                  canonical, robots, lang, h1, word_count, content_hash, links_internal, links_external,
                  redirects, fetched_at, duration_ms, attempt, rendered, error_code, error_message, data,
                  body_file, body_offset, body_length, etag, last_modified, links, fingerprint, text_hash, flags)
VALUES (:crawl, :key, :chk, :url, :final_url, :status, :depth, :parent, :content_type, :encoding, :bytes, :title,
        :description, :canonical, :robots, :lang, :h1, :word_count, :content_hash, :links_internal,
        :links_external, :redirects, :fetched_at, :duration_ms, :attempt, :rendered, :error_code,
        :error_message, :data, :body_file, :body_offset, :body_length, :etag, :last_modified, :links, :fingerprint,
        :text_hash, :flags)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: insert_details
-- Store a page's details and links, unless they are there.
INSERT INTO page_detail (crawl, key, chk, detail, outlinks) VALUES (:crawl, :key, :chk, :detail, :outlinks)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: page_validators
-- Return the final URLs of pages with these keys, and the validators of those fetched without a redirect.
SELECT p.key, p.chk, p.depth, p.links,
  CASE WHEN p.status IN (200, 304) AND p.error_code IS NULL AND p.redirects IS NULL THEN p.etag END AS etag,
  CASE WHEN p.status IN (200, 304) AND p.error_code IS NULL AND p.redirects IS NULL THEN p.last_modified
  END AS last_modified
FROM json_each(:keys) AS k CROSS JOIN page AS p ON p.crawl = :crawl AND p.key = k.value;

-- name: pages_of_keys
-- The pages with these keys.
SELECT p.* FROM json_each(:keys) AS k CROSS JOIN page AS p ON p.crawl = :crawl AND p.key = k.value;

-- name: data_sizes
-- The number of characters of the extracted data of the pages with these numbers.
SELECT p.number, coalesce(length(p.data), 0) AS size
FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl;

-- name: data_of_pages
-- The extracted data of the pages with these numbers.
SELECT p.number, p.data FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl;

-- name: details_of_keys
-- The details and links of the pages with these keys.
SELECT d.key, d.chk, d.detail, d.outlinks
FROM json_each(:keys) AS k CROSS JOIN page_detail AS d ON d.crawl = :crawl AND d.key = k.value;

-- name: urls_of_keys
-- The URLs of the pages with these keys, and of those that pages redirect to.
SELECT p.key, p.url FROM json_each(:keys) AS k CROSS JOIN page AS p ON p.crawl = :crawl AND p.key = k.value
UNION ALL
SELECT r.key, r.url FROM json_each(:keys) AS k CROSS JOIN redirect_target AS r ON r.crawl = :crawl AND r.key = k.value
WHERE r.fate = 4;

-- name: statuses_of_keys
-- The statuses of the pages with these keys, and for URLs that were fetched as the target of a redirect, its source.
SELECT p.key, p.status, p.error_code, p.redirects, NULL AS via
FROM json_each(:keys) AS k CROSS JOIN page AS p ON p.crawl = :crawl AND p.key = k.value
UNION ALL
SELECT r.key, NULL, NULL, NULL, r.via
FROM json_each(:keys) AS k CROSS JOIN redirect_target AS r ON r.crawl = :crawl AND r.key = k.value
WHERE r.fate = 4;

-- name: details_after
-- The details of pages of a crawl from after :number to :upto, in the order in which the pages were stored.
SELECT p.number, d.detail FROM page AS p JOIN page_detail AS d ON d.crawl = p.crawl AND d.key = p.key AND d.chk = p.chk
WHERE p.crawl = :crawl AND p.number > :number AND p.number <= :upto AND length(d.detail) > 0 ORDER BY p.number;

-- name: outlinks_after
-- The links of pages of a crawl from after :number to :upto, in the order in which the pages were stored.
SELECT p.number, d.outlinks FROM page AS p JOIN page_detail AS d ON d.crawl = p.crawl AND d.key = p.key AND d.chk = p.chk
WHERE p.crawl = :crawl AND p.number > :number AND p.number <= :upto AND d.outlinks IS NOT NULL ORDER BY p.number;

-- name: drop_details_up_to
-- Delete the details of pages of a crawl, up to the page with a number.
DELETE FROM page_detail WHERE crawl = :crawl AND (key, chk) IN
    (SELECT key, chk FROM page WHERE crawl = :crawl AND number <= :number);

-- name: drop_failed_details
-- Delete the details of these pages.
DELETE FROM page_detail WHERE crawl = :crawl AND (key, chk) IN
    (SELECT p.key, p.chk FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl);

-- name: drop_failed_pages
-- Delete these pages, and return them.
DELETE FROM page WHERE crawl = :crawl AND number IN (SELECT value FROM json_each(:numbers))
RETURNING key, chk, url, depth, parent, status, error_code, bytes, coalesce(final_url, url) AS final_url;

-- name: known_pages
-- Return which of these keys have a page.
SELECT p.key, p.chk FROM json_each(:keys) AS k CROSS JOIN page AS p ON p.crawl = :crawl AND p.key = k.value;
