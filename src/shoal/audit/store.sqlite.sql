-- name: lock_analysis
-- One analysis; the write lock is held already.
SELECT * FROM analysis WHERE id = :id;

-- name: insert_findings
-- Store a finding.
INSERT INTO finding (analysis, code, number, key, page, evidence)
VALUES (:analysis, :code, :number, :key, :page, :evidence);
