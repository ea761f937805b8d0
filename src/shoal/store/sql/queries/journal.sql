-- name: reserve_lines
-- The numbers of the next lines of a journal: the last of them. Held until the commit, so numbers rise with commits.
INSERT INTO crawl_journal (crawl, lines) VALUES (:crawl, :count)
ON CONFLICT (crawl) DO UPDATE SET lines = crawl_journal.lines + excluded.lines
RETURNING lines;

-- name: drop_first_lines
-- A long journal loses its first lines.
DELETE FROM crawl_line WHERE crawl = :crawl AND number <= :number;

-- name: lines_after
-- Lines of a journal, after a number.
SELECT number, at, level, event, message, facts FROM crawl_line
WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: last_lines
-- The last lines of a journal, the last one first.
SELECT number, at, level, event, message, facts FROM crawl_line
WHERE crawl = :crawl ORDER BY number DESC LIMIT :limit;

-- name: finish_depth
-- Everything up to a depth is settled; the depth before.
UPDATE crawl_journal SET was = depth, depth = :depth WHERE crawl = :crawl AND depth < :depth RETURNING was;

-- name: unfiled_journals
-- Crawls that have lines in no file.
SELECT j.crawl, (SELECT c.id FROM crawl AS c WHERE c.number = j.crawl) AS crawl_id,
       (SELECT c.project FROM crawl AS c WHERE c.number = j.crawl) AS project, j.filed, j.lines
FROM crawl_journal AS j
WHERE j.filed < j.lines ORDER BY j.crawl LIMIT :limit;

-- name: claim_lines
-- Lines up to a number count as filed, if nobody else was first.
UPDATE crawl_journal SET filed = :upto WHERE crawl = :crawl AND filed = :filed;

-- name: drop_lines
-- Drop the lines of a crawl.
DELETE FROM crawl_line WHERE crawl = :crawl;

-- name: drop_journal
-- Drop the journal of a crawl.
DELETE FROM crawl_journal WHERE crawl = :crawl;

-- name: shallowest_open
-- Where the shallowest open URL of a crawl stands, of those that will be fetched: at each of its hosts the first in line.
SELECT min(places.seq) AS seq FROM (
    SELECT (SELECT f.seq FROM frontier AS f WHERE f.crawl = fh.crawl AND f.host = fh.host ORDER BY f.seq LIMIT 1) AS seq
    FROM frontier_host AS fh WHERE fh.crawl = :crawl
    UNION ALL
    SELECT (SELECT t.seq FROM frontier_touched AS t WHERE t.crawl = :crawl AND t.due < 4611686018427387904
            ORDER BY t.seq LIMIT 1)
) AS places;
