-- name: robots_of_hosts
-- The robots.txt of hosts that responded to the request for it.
SELECT h.origin, h.robots_state, h.robots FROM json_each(:origins) AS o CROSS JOIN host AS h ON h.origin = o.value
WHERE h.robots_state IN ('found', 'absent');

-- name: page_columns_numbered
-- The page columns that diffs compare, by page number.
SELECT p.number, p.key, p.status, p.depth, p.duration_ms, p.word_count, p.bytes, p.flags, p.fingerprint,
       p.text_hash, p.url, p.final_url, p.content_type, p.title, p.description, p.canonical, p.robots, p.lang, p.h1, p.content_hash,
       p.redirects, p.error_code, p.data IS NOT NULL AS has_data
FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl
ORDER BY p.number;

-- name: fates_after
-- Keys of the URLs with a given fate, after one key and up to a second key, in index order.
SELECT key FROM fate
WHERE crawl = :crawl AND (key, chk) > (:key, :chk) AND (key, chk) <= (:last_key, :last_chk) AND fate = :fate
ORDER BY key, chk;

-- name: fate_key_after
-- Return the key of a URL: skip :skip URLs after a key, in index order.
SELECT key, chk FROM fate WHERE crawl = :crawl AND (key, chk) > (:key, :chk) ORDER BY key, chk LIMIT 1 OFFSET :skip;
