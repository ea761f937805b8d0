-- Analyzers that did not apply to a crawl, and those whose failure does not fail the analysis. Analyses of earlier
-- versions succeeded although analyzers failed, so those were optional.
ALTER TABLE analyzer_outcome ADD COLUMN skipped TEXT;  -- why it did not apply
ALTER TABLE analyzer_outcome ADD COLUMN optional BOOLEAN NOT NULL DEFAULT false;
UPDATE analyzer_outcome SET optional = true;
