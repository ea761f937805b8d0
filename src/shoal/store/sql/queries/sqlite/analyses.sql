-- name: lock_analysis
-- One analysis; the write lock is held already.
SELECT * FROM analysis WHERE id = :id;

-- name: insert_findings
-- Store a finding.
INSERT INTO finding (analysis, analyzer, key, severity, message, facts)
VALUES (:analysis, :analyzer, :key, :severity, :message, :facts);
