-- name: lock_analysis
-- One analysis, locked against any other change.
SELECT * FROM analysis WHERE id = :id FOR UPDATE;

-- name: insert_findings
-- Store findings.
-- batch: arrays
INSERT INTO finding (analysis, code, number, key, page, evidence)
SELECT * FROM unnest(:analysis::bigint[], :code::text[], :number::bigint[], :key::bigint[], :page::text[],
                     :evidence::text[]);
