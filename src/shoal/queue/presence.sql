-- name: note_presence
-- Note that somebody is here, unless a note is fresh: of many workers, few write the row they share.
INSERT INTO pulse (name, at) VALUES (:name, shoal_now())
ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE pulse.at < excluded.at - :fresh;

-- name: show_presence
-- Find a note that still counts.
SELECT at FROM pulse WHERE name = :name AND at > shoal_now() - :counts_for;
