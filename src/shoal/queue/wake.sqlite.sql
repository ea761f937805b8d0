-- name: ends_of_lines
-- Return the last job of every queue that shared workers lease from, without the lanes of single processes
-- (`local/…`). It skips backwards from queue to queue, so the length of the queues does not matter.
WITH RECURSIVE line (id, lane, kind, capability) AS (
    SELECT * FROM (SELECT id, lane, kind, capability FROM job WHERE state = 'pending' AND due = 1
                   ORDER BY lane DESC, kind DESC, capability DESC, rank DESC, id DESC LIMIT 1)
    UNION ALL
    SELECT j.id, j.lane, j.kind, j.capability FROM line CROSS JOIN job AS j ON j.rowid = coalesce(
        (SELECT n.rowid FROM job AS n
         WHERE n.state = 'pending' AND n.due = 1 AND n.lane = line.lane AND n.kind = line.kind
               AND n.capability < line.capability
         ORDER BY n.capability DESC, n.rank DESC, n.id DESC LIMIT 1),
        (SELECT n.rowid FROM job AS n WHERE n.state = 'pending' AND n.due = 1 AND n.lane = line.lane AND n.kind < line.kind
         ORDER BY n.kind DESC, n.capability DESC, n.rank DESC, n.id DESC LIMIT 1),
        (SELECT n.rowid FROM job AS n WHERE n.state = 'pending' AND n.due = 1 AND n.lane < line.lane
         ORDER BY n.lane DESC, n.kind DESC, n.capability DESC, n.rank DESC, n.id DESC LIMIT 1))
)
SELECT id FROM line WHERE lane < 'local/' OR lane >= 'local0';
