-- name: robots_of_hosts
-- The robots.txt of hosts that responded to the request for it.
SELECT h.origin, h.robots_state, h.robots FROM unnest(:origins::text[]) AS o (origin)
CROSS JOIN LATERAL (SELECT * FROM host WHERE host.origin = o.origin OFFSET 0) AS h
WHERE h.robots_state IN ('found', 'absent');

-- name: page_columns_numbered
-- The page columns that diffs compare, by page number.
SELECT p.number, p.key, p.status, p.depth, p.duration_ms, p.word_count, p.bytes, p.flags, p.fingerprint,
       p.text_hash, p.url, p.final_url, p.content_type, p.title, p.description, p.canonical, p.robots, p.lang, p.h1, p.content_hash,
       p.redirects, p.error_code, p.data IS NOT NULL AS has_data
FROM unnest(:numbers::bigint[]) AS n (number)
CROSS JOIN LATERAL (SELECT * FROM page AS t WHERE t.crawl = :crawl AND t.number >= n.number AND t.number <= n.number
                    ORDER BY t.number OFFSET 0) AS p
ORDER BY p.number;

-- name: fates_after
-- Keys of the URLs with a given fate, after one key and up to a second key, in index order.
SELECT key FROM fate
WHERE crawl = :crawl AND (chk, key) > (:chk, :key) AND (chk, key) <= (:last_chk, :last_key) AND fate = :fate
ORDER BY chk, key;

-- name: fate_key_after
-- Return the key of a URL: skip :skip URLs after a key, in index order.
SELECT key, chk FROM fate WHERE crawl = :crawl AND (chk, key) > (:chk, :key) ORDER BY chk, key LIMIT 1 OFFSET :skip;
