-- name: frontier_place
-- Return a crawl as a frontier outside the database needs it, and the current time.
SELECT c.id, c.key_seed, c.frontier, f.generation, f.rebuilt_by, shoal_now() AS now
FROM crawl AS c LEFT JOIN crawl_frontier AS f ON f.crawl = c.number WHERE c.number = :crawl;

-- name: keep_outside
-- Record that the frontier of a new crawl is kept outside the database.
UPDATE crawl SET frontier = :driver WHERE number = :crawl;

-- name: insert_crawl_frontier
-- Store the generation of a frontier.
INSERT INTO crawl_frontier (crawl, generation) VALUES (:crawl, :generation);

-- name: rebuild_frontier
-- Give a lost frontier a new generation, and record the walker that rebuilds it.
UPDATE crawl_frontier SET generation = :generation, rebuilt_by = :walker WHERE crawl = :crawl;

-- name: end_frontier_rebuild
-- Record that a frontier is complete again.
UPDATE crawl_frontier SET rebuilt_by = NULL WHERE crawl = :crawl;

-- name: raise_frontier_version
-- Record the version of the counters that are about to be mirrored; older versions change nothing.
UPDATE crawl_frontier SET version = :version WHERE crawl = :crawl AND version < :version;

-- name: set_frontier_counts
-- Mirror the counters of a frontier.
INSERT INTO crawl_counter (crawl, holder, opened, settled) VALUES (:crawl, :holder, :opened, :settled)
ON CONFLICT (crawl, holder) DO UPDATE SET opened = excluded.opened, settled = excluded.settled;

-- name: drop_crawl_frontier
-- Forget the generation of a frontier.
DELETE FROM crawl_frontier WHERE crawl = :crawl;
