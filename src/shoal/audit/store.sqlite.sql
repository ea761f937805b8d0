-- name: lock_analysis
-- One analysis; the write lock is held already.
SELECT * FROM analysis WHERE id = :id;

-- name: insert_findings
-- Store a finding.
INSERT INTO finding (analysis, code, number, key, page, evidence)
VALUES (:analysis, :code, :number, :key, :page, :evidence);

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
