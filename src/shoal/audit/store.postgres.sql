-- name: lock_analysis
-- One analysis, locked against any other change.
SELECT * FROM analysis WHERE id = :id FOR UPDATE;

-- name: insert_findings
-- Store findings.
-- batch: arrays
INSERT INTO finding (analysis, code, number, key, page, evidence)
SELECT * FROM unnest(:analysis::bigint[], :code::text[], :number::bigint[], :key::bigint[], :page::text[],
                     :evidence::text[]);

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
