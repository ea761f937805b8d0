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
