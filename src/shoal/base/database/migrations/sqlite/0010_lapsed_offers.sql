-- Nodes that take none of the jobs that are offered to them: how often offers lapsed since the node last leased a job, and
-- when that happened last.
ALTER TABLE node ADD COLUMN lapsed_offers INTEGER NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN lapsed_at INTEGER NOT NULL DEFAULT 0;
