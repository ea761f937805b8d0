-- The results of scrapes are kept as long as those of policies; only the results of groups are removed with their jobs.
DROP INDEX result_old;
CREATE INDEX result_old ON result (fetched_at, number) WHERE group_id IS NULL;

-- Rendered pages that stayed empty. Crawls that ended before do not count them.
ALTER TABLE crawl_counter ADD COLUMN stayed_empty INTEGER NOT NULL DEFAULT 0;
