-- name: robots_of_hosts
-- The robots.txt of hosts that responded to the request for it.
SELECT h.origin, h.robots_state, h.robots FROM json_each(:origins) AS o CROSS JOIN host AS h ON h.origin = o.value
WHERE h.robots_state IN ('found', 'absent');

-- name: page_columns_numbered
-- What is compared of pages, by their numbers.
SELECT p.number, p.key, p.status, p.depth, p.duration_ms, p.word_count, p.bytes, p.flags, p.fingerprint,
       p.text_hash, p.url, p.final_url, p.content_type, p.title, p.description, p.canonical, p.robots, p.lang, p.h1, p.content_hash,
       p.redirects, p.error_code, p.data
FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl
ORDER BY p.number;

-- name: fates_after
-- Keys of URLs with a fate, after a key and up to another one, in the order of the index.
SELECT key FROM fate
WHERE crawl = :crawl AND (key, chk) > (:key, :chk) AND (key, chk) <= (:last_key, :last_chk) AND fate = :fate
ORDER BY key, chk;

-- name: fate_key_after
-- Return the key of a URL, :skip URLs after the first one after a key, in the order of the index.
SELECT key, chk FROM fate WHERE crawl = :crawl AND (key, chk) > (:key, :chk) ORDER BY key, chk LIMIT 1 OFFSET :skip;
