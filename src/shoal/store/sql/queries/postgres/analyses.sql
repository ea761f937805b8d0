-- name: lock_analysis
-- One analysis, locked against any other change.
SELECT * FROM analysis WHERE id = :id FOR UPDATE;

-- name: insert_findings
-- Store findings.
-- batch: arrays
INSERT INTO finding (analysis, analyzer, key, severity, message, facts)
SELECT * FROM unnest(:analysis::bigint[], :analyzer::text[], :key::text[], :severity::text[], :message::text[],
                     :facts::text[]);
