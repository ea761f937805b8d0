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
-- The robots.txt of hosts.
SELECT h.origin, h.robots_state, h.robots FROM unnest(:origins::text[]) AS o (origin)
CROSS JOIN LATERAL (SELECT * FROM host WHERE host.origin = o.origin OFFSET 0) AS h
WHERE h.robots_state IS NOT NULL;
