-- Points of URL patterns that may be crawler traps: walkers share them, and a crawl that is resumed has them.
CREATE TABLE trap_score (
    crawl   INTEGER NOT NULL REFERENCES crawl,
    pattern TEXT NOT NULL,
    score   BIGINT NOT NULL CHECK (score >= 0),
    PRIMARY KEY (crawl, pattern)
);

-- Crawls have no depth limit any more unless one is set. What was created before keeps the limit of 3.
UPDATE crawl SET config = jsonb_set(config::jsonb, '{depth}', '3')::text WHERE NOT config::jsonb ? 'depth';
UPDATE policy SET spec = jsonb_set(spec::jsonb, '{crawl_config,depth}', '3')::text
WHERE line = 'site' AND NOT spec::jsonb -> 'crawl_config' ? 'depth';
