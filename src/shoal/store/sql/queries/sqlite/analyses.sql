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

-- name: due_commit_statuses
-- Commit statuses to publish now; the write lock is held already.
SELECT s.*, a.id, a.commit_ref FROM commit_status AS s JOIN analysis AS a ON a.number = s.analysis
WHERE s.next_at <= shoal_now() AND s.taken_until <= shoal_now() ORDER BY s.next_at LIMIT :limit;

-- name: open_commit_status
-- The commit status of an analysis, unless it is published or taken.
SELECT s.*, a.id, a.commit_ref FROM analysis AS a JOIN commit_status AS s ON s.analysis = a.number
WHERE a.id = :id AND s.next_at IS NOT NULL AND s.taken_until <= shoal_now();
