-- name: lock_analysis
-- One analysis, locked against any other change.
SELECT * FROM analysis WHERE id = :id FOR UPDATE;

-- name: insert_findings
-- Store findings.
-- batch: arrays
INSERT INTO finding (analysis, code, number, key, page, evidence)
SELECT * FROM unnest(:analysis::bigint[], :code::text[], :number::bigint[], :key::bigint[], :page::text[],
                     :evidence::text[]);

-- name: robots_of_hosts
-- The robots.txt of hosts that responded to the request for it.
SELECT h.origin, h.robots_state, h.robots FROM unnest(:origins::text[]) AS o (origin)
CROSS JOIN LATERAL (SELECT * FROM host WHERE host.origin = o.origin OFFSET 0) AS h
WHERE h.robots_state IN ('found', 'absent');

-- name: page_columns_numbered
-- What is compared of pages, by their numbers.
SELECT p.number, p.key, p.status, p.depth, p.duration_ms, p.word_count, p.bytes, p.flags, p.fingerprint,
       p.text_hash, p.url, p.final_url, p.content_type, p.title, p.description, p.canonical, p.robots, p.lang, p.h1, p.content_hash,
       p.redirects, p.error_code, p.data
FROM unnest(:numbers::bigint[]) AS n (number)
CROSS JOIN LATERAL (SELECT * FROM page AS t WHERE t.crawl = :crawl AND t.number >= n.number AND t.number <= n.number
                    ORDER BY t.number OFFSET 0) AS p
ORDER BY p.number;

-- name: due_commit_statuses
-- Commit statuses to publish now; locked against other publishers.
SELECT s.*, (SELECT id FROM analysis WHERE number = s.analysis) AS id,
       (SELECT commit_ref FROM analysis WHERE number = s.analysis) AS commit_ref
FROM commit_status AS s
WHERE s.next_at <= shoal_now() AND s.taken_until <= shoal_now() ORDER BY s.next_at LIMIT :limit
FOR UPDATE SKIP LOCKED;

-- name: open_commit_status
-- The commit status of an analysis, unless it is published or taken; locked against other publishers.
SELECT s.*, (SELECT id FROM analysis WHERE id = :id) AS id,
       (SELECT commit_ref FROM analysis WHERE id = :id) AS commit_ref
FROM commit_status AS s
WHERE s.analysis = (SELECT number FROM analysis WHERE id = :id)
  AND s.next_at IS NOT NULL AND s.taken_until <= shoal_now()
FOR UPDATE SKIP LOCKED;

-- name: fates_after
-- Keys of URLs with a fate, after a key, in the order of the index.
SELECT key, chk FROM fate WHERE crawl = :crawl AND (chk, key) > (:chk, :key) AND fate = :fate ORDER BY chk, key LIMIT :limit;
