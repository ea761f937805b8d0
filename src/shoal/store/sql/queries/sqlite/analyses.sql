-- name: lock_analysis
-- One analysis; the write lock is held already.
SELECT * FROM analysis WHERE id = :id;

-- name: insert_findings
-- Store a finding.
INSERT INTO finding (analysis, code, number, key, page, evidence)
VALUES (:analysis, :code, :number, :key, :page, :evidence);

-- name: robots_of_hosts
-- The robots.txt of hosts.
SELECT h.origin, h.robots_state, h.robots FROM json_each(:origins) AS o CROSS JOIN host AS h ON h.origin = o.value
WHERE h.robots_state IS NOT NULL;

-- name: page_columns_numbered
-- What is compared of pages, by their numbers.
SELECT p.number, p.key, p.status, p.depth, p.duration_ms, p.word_count, p.bytes, p.flags, p.fingerprint, p.url,
       p.final_url, p.content_type, p.title, p.description, p.canonical, p.robots, p.lang, p.h1, p.content_hash,
       p.redirects, p.error_code
FROM json_each(:numbers) AS n CROSS JOIN page AS p ON p.number = n.value AND p.crawl = :crawl
ORDER BY p.number;
