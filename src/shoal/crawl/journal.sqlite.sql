-- name: insert_journal_entries
-- Add entries to a journal.
-- rows: crawl number level event message facts
INSERT INTO crawl_line (crawl, number, at, level, event, message, facts)
VALUES (:crawl, :number, shoal_now(), :level, :event, :message, :facts);
