-- name: insert_pages
-- Store pages, in the order in which they come, unless they are there.
-- batch: arrays
INSERT INTO page (crawl, key, chk, url, final_url, status, depth, parent, content_type, encoding, bytes, title, description,
                  canonical, robots, lang, h1, word_count, content_hash, links_internal, links_external,
                  redirects, fetched_at, duration_ms, attempt, rendered, error_code, error_message, data,
                  body_file, body_offset, body_length, etag, last_modified, links, fingerprint, text_hash, flags)
SELECT * FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :url::text[], :final_url::text[], :status::smallint[],
                     :depth::int[], :parent::text[], :content_type::text[], :encoding::text[],
                     :bytes::bigint[], :title::text[], :description::text[], :canonical::text[],
                     :robots::text[], :lang::text[], :h1::text[], :word_count::int[], :content_hash::text[],
                     :links_internal::int[], :links_external::int[], :redirects::text[],
                     :fetched_at::bigint[], :duration_ms::float8[], :attempt::int[], :rendered::smallint[],
                     :error_code::text[], :error_message::text[], :data::text[], :body_file::text[],
                     :body_offset::bigint[], :body_length::int[], :etag::text[], :last_modified::text[],
                     :links::bytea[], :fingerprint::bigint[], :text_hash::bigint[], :flags::smallint[])
         AS g (crawl, key, chk, url, final_url, status, depth, parent, content_type, encoding, bytes, title, description,
               canonical, robots, lang, h1, word_count, content_hash, links_internal, links_external,
               redirects, fetched_at, duration_ms, attempt, rendered, error_code, error_message, data,
               body_file, body_offset, body_length, etag, last_modified, links, fingerprint, text_hash, flags)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: insert_details
-- Store the details and links of pages, unless they are there.
-- batch: arrays
INSERT INTO page_detail (crawl, key, chk, detail, outlinks)
SELECT * FROM unnest(:crawl::int[], :key::bigint[], :chk::int[], :detail::bytea[], :outlinks::bytea[])
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: page_validators
-- Return the final URLs of pages with these keys, and the validators of those fetched without a redirect.
SELECT p.key, p.chk, p.depth, p.links,
  CASE WHEN p.status IN (200, 304) AND p.error_code IS NULL AND p.redirects IS NULL THEN p.etag END AS etag,
  CASE WHEN p.status IN (200, 304) AND p.error_code IS NULL AND p.redirects IS NULL THEN p.last_modified
  END AS last_modified
FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT * FROM page WHERE page.crawl = :crawl AND page.key = k.key ORDER BY page.chk OFFSET 0) AS p;

-- name: pages_of_keys
-- The pages with these keys.
SELECT p.* FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT * FROM page WHERE page.crawl = :crawl AND page.key = k.key ORDER BY page.chk OFFSET 0) AS p;

-- name: data_sizes
-- The number of bytes of the extracted data of the pages with these numbers, for which the data need not be read.
SELECT p.number, coalesce(octet_length(p.data), 0) AS size
FROM unnest(:numbers::bigint[]) AS n (number)
CROSS JOIN LATERAL (SELECT t.number, t.data FROM page AS t
                    WHERE t.crawl = :crawl AND t.number >= n.number AND t.number <= n.number
                    ORDER BY t.number OFFSET 0) AS p;

-- name: data_of_pages
-- The extracted data of the pages with these numbers.
SELECT p.number, p.data
FROM unnest(:numbers::bigint[]) AS n (number)
CROSS JOIN LATERAL (SELECT t.number, t.data FROM page AS t
                    WHERE t.crawl = :crawl AND t.number >= n.number AND t.number <= n.number
                    ORDER BY t.number OFFSET 0) AS p;

-- name: details_of_keys
-- The details and links of the pages with these keys.
SELECT d.key, d.chk, d.detail, d.outlinks FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT * FROM page_detail AS t WHERE t.crawl = :crawl AND t.key = k.key ORDER BY t.chk OFFSET 0) AS d;

-- name: urls_of_keys
-- The URLs of the pages with these keys, and of those that pages redirect to.
SELECT p.key, p.url FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT key, url FROM page WHERE page.crawl = :crawl AND page.key = k.key ORDER BY page.chk OFFSET 0) AS p
UNION ALL
SELECT r.key, r.url FROM unnest(:keys::bigint[]) AS k (value)
CROSS JOIN LATERAL (SELECT t.key, t.url, t.fate FROM redirect_target AS t
                    WHERE t.crawl = :crawl AND t.key = k.value ORDER BY t.chk OFFSET 0) AS r
WHERE r.fate = 4;

-- name: statuses_of_keys
-- The statuses of the pages with these keys, and for URLs that were fetched as the target of a redirect, its source.
SELECT p.key, p.status, p.error_code, p.redirects, NULL AS via FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT t.key, t.status, t.error_code, t.redirects FROM page AS t
                    WHERE t.crawl = :crawl AND t.key = k.key ORDER BY t.chk OFFSET 0) AS p
UNION ALL
SELECT r.key, NULL, NULL, NULL, r.via FROM unnest(:keys::bigint[]) AS k (value)
CROSS JOIN LATERAL (SELECT t.key, t.via, t.fate FROM redirect_target AS t
                    WHERE t.crawl = :crawl AND t.key = k.value ORDER BY t.chk OFFSET 0) AS r
WHERE r.fate = 4;

-- name: details_after
-- The details of pages of a crawl from after :number to :upto, in the order in which the pages were stored.
SELECT p.number, d.detail FROM page AS p
CROSS JOIN LATERAL (SELECT t.detail FROM page_detail AS t
                    WHERE t.crawl = p.crawl AND t.key = p.key AND t.chk = p.chk OFFSET 0) AS d
WHERE p.crawl = :crawl AND p.number > :number AND p.number <= :upto AND length(d.detail) > 0 ORDER BY p.number;

-- name: outlinks_after
-- The links of pages of a crawl from after :number to :upto, in the order in which the pages were stored.
SELECT p.number, d.outlinks FROM page AS p
CROSS JOIN LATERAL (SELECT t.outlinks FROM page_detail AS t
                    WHERE t.crawl = p.crawl AND t.key = p.key AND t.chk = p.chk OFFSET 0) AS d
WHERE p.crawl = :crawl AND p.number > :number AND p.number <= :upto AND d.outlinks IS NOT NULL ORDER BY p.number;

-- name: drop_details_up_to
-- Delete the details of pages of a crawl, up to the page with a number.
DELETE FROM page_detail WHERE ctid = ANY(ARRAY(
    SELECT d.place FROM page AS p
    CROSS JOIN LATERAL (SELECT t.ctid AS place FROM page_detail AS t
                        WHERE t.crawl = p.crawl AND t.key = p.key AND t.chk = p.chk OFFSET 0) AS d
    WHERE p.crawl = :crawl AND p.number <= :number ORDER BY p.number));

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
RETURNING key, chk, url, depth, parent, status, error_code, bytes, coalesce(final_url, url) AS final_url;

-- name: known_pages
-- Return which of these keys have a page.
SELECT p.key, p.chk FROM unnest(:keys::bigint[]) AS k (key)
CROSS JOIN LATERAL (SELECT t.key, t.chk FROM page AS t WHERE t.crawl = :crawl AND t.key = k.key ORDER BY t.chk OFFSET 0) AS p;
