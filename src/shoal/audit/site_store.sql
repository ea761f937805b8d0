-- name: page_columns_after
-- The page columns for analyzers, in storage order.
SELECT number, key, status, depth, duration_ms, word_count, bytes, flags, fingerprint, text_hash, url, final_url,
       content_type, title, description, canonical, robots, lang, h1, content_hash, redirects, error_code
FROM page WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: compared_columns_after
-- The page columns that diffs compare, in storage order.
SELECT number, key, status, depth, duration_ms, word_count, bytes, flags, fingerprint, text_hash, url, final_url,
       content_type, title, description, canonical, robots, lang, h1, content_hash, redirects, error_code,
       data IS NOT NULL AS has_data
FROM page WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: redirect_targets_after
-- URLs that were fetched only as the target of a redirect.
SELECT key, url, via FROM redirect_target WHERE crawl = :crawl AND key > :key AND fate = 4 ORDER BY key, chk LIMIT :limit;

-- name: sitemaps_of_crawl
-- The sitemaps that were read, and what they list.
SELECT url, status, problem, entries FROM sitemap WHERE crawl = :crawl ORDER BY url;
