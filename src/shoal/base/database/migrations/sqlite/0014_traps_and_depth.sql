-- Points of URL patterns that may be crawler traps: walkers share them, and a crawl that is resumed has them.
CREATE TABLE trap_score (
    crawl   INTEGER NOT NULL REFERENCES crawl,
    pattern TEXT NOT NULL,
    score   INTEGER NOT NULL CHECK (score >= 0),
    PRIMARY KEY (crawl, pattern)
) WITHOUT ROWID;

-- Crawls have no depth limit any more unless one is set. What was created before keeps the limit of 3.
UPDATE crawl SET config = json_set(config, '$.depth', 3) WHERE json_type(config, '$.depth') IS NULL;
UPDATE policy SET spec = json_set(spec, '$.crawl_config.depth', 3)
WHERE line = 'site' AND json_type(spec, '$.crawl_config.depth') IS NULL;
