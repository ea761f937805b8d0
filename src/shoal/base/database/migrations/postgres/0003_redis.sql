-- The driver of each crawl's frontier. A frontier on Redis also has a generation, which shows whether Redis has lost
-- it, and the version of the counters that are mirrored here.
ALTER TABLE crawl ADD COLUMN frontier TEXT NOT NULL DEFAULT 'sql' CHECK (frontier IN ('sql', 'redis'));
CREATE TABLE crawl_frontier (
    crawl      INT PRIMARY KEY REFERENCES crawl,
    generation TEXT NOT NULL,
    version    BIGINT NOT NULL DEFAULT 0,
    rebuilt_by TEXT  -- the walker that is rebuilding it, as job:epoch
);
