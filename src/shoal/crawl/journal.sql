-- name: reserve_journal_entries
-- Reserve numbers for the next journal entries; return the last reserved number. The row stays locked until the commit,
-- so entries are numbered in commit order.
INSERT INTO crawl_journal (crawl, lines) VALUES (:crawl, :count)
ON CONFLICT (crawl) DO UPDATE SET lines = crawl_journal.lines + excluded.lines
RETURNING lines;

-- name: drop_first_journal_entries
-- Delete the oldest entries of a long journal.
DELETE FROM crawl_line WHERE crawl = :crawl AND number <= :number;

-- name: journal_entries_after
-- Return journal entries after a number.
SELECT number, at, level, event, message, facts FROM crawl_line
WHERE crawl = :crawl AND number > :number ORDER BY number LIMIT :limit;

-- name: last_journal_entries
-- Return the last journal entries, newest first.
SELECT number, at, level, event, message, facts FROM crawl_line
WHERE crawl = :crawl ORDER BY number DESC LIMIT :limit;

-- name: finish_depth
-- Record that all URLs up to a depth are settled; return the depth that was recorded before.
UPDATE crawl_journal SET was = depth, depth = :depth WHERE crawl = :crawl AND depth < :depth RETURNING was;

-- name: unfiled_journals
-- Return crawls with journal entries that are not written to a file yet.
SELECT j.crawl, (SELECT c.id FROM crawl AS c WHERE c.number = j.crawl) AS crawl_id,
       (SELECT c.project FROM crawl AS c WHERE c.number = j.crawl) AS project, j.filed, j.lines
FROM crawl_journal AS j
WHERE j.filed < j.lines ORDER BY j.crawl LIMIT :limit;

-- name: claim_journal_entries
-- Mark entries up to a number as written to the file, unless another process was first.
UPDATE crawl_journal SET filed = :upto WHERE crawl = :crawl AND filed = :filed;

-- name: drop_journal_entries
-- Delete the journal entries of a crawl.
DELETE FROM crawl_line WHERE crawl = :crawl;

-- name: drop_journal
-- Delete the journal of a crawl.
DELETE FROM crawl_journal WHERE crawl = :crawl;

-- name: shallowest_open
-- Return the position of a crawl's shallowest open URL that will be fetched. It is enough to look at the first URL in
-- the queue of each host, and at retries.
SELECT min(places.seq) AS seq FROM (
    SELECT (SELECT f.seq FROM frontier AS f WHERE f.crawl = fh.crawl AND f.host = fh.host ORDER BY f.seq LIMIT 1) AS seq
    FROM frontier_host AS fh WHERE fh.crawl = :crawl
    UNION ALL
    SELECT (SELECT t.seq FROM frontier_touched AS t WHERE t.crawl = :crawl AND t.due < 4611686018427387904
            ORDER BY t.seq LIMIT 1)
) AS places;
