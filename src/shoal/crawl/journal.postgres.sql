-- name: insert_journal_entries
-- Add entries to a journal.
-- rows: crawl number level event message facts
INSERT INTO crawl_line (crawl, number, at, level, event, message, facts)
SELECT crawl, number, shoal_now(), level, event, message, facts
FROM unnest(:crawl::int[], :number::bigint[], :level::text[], :event::text[], :message::text[], :facts::text[])
    AS g (crawl, number, level, event, message, facts);
