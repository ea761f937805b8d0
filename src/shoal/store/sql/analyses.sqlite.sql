-- name: lock_analysis
-- One analysis; the write lock is held already.
SELECT * FROM analysis WHERE id = :id;

-- name: insert_findings
-- Store a finding.
INSERT INTO finding (analysis, code, number, key, page, evidence)
VALUES (:analysis, :code, :number, :key, :page, :evidence);

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

-- name: due_commit_statuses
-- Commit statuses to publish now; the write lock is held already.
SELECT s.*, (SELECT id FROM analysis WHERE number = s.analysis) AS id,
       (SELECT commit_ref FROM analysis WHERE number = s.analysis) AS commit_ref
FROM commit_status AS s
WHERE s.next_at <= shoal_now() AND s.taken_until <= shoal_now() ORDER BY s.next_at LIMIT :limit;

-- name: open_commit_status
-- The commit status of an analysis, unless it is published or taken; the write lock is held already.
SELECT s.*, (SELECT id FROM analysis WHERE id = :id) AS id,
       (SELECT commit_ref FROM analysis WHERE id = :id) AS commit_ref
FROM commit_status AS s
WHERE s.analysis = (SELECT number FROM analysis WHERE id = :id)
  AND s.next_at IS NOT NULL AND s.taken_until <= shoal_now();

-- name: fates_after
-- Keys of URLs with a fate, after a key, in the order of the index.
SELECT key, chk FROM fate WHERE crawl = :crawl AND (key, chk) > (:key, :chk) AND fate = :fate ORDER BY key, chk LIMIT :limit;
