-- Frontiers on Redis. The row of a crawl says which driver it was started with; one on Redis also has a generation, by
-- which a frontier that Redis lost is recognised, and the version of the counters that are mirrored here.
ALTER TABLE crawl ADD COLUMN frontier TEXT NOT NULL DEFAULT 'sql' CHECK (frontier IN ('sql', 'redis'));
CREATE TABLE crawl_frontier (
    crawl      INTEGER PRIMARY KEY REFERENCES crawl,
    generation TEXT NOT NULL,
    version    INTEGER NOT NULL DEFAULT 0,
    rebuilt_by TEXT  -- the walker that is rebuilding it, as job:epoch
);
