-- name: note_presence
-- Note that a worker is running, unless there is a fresh note. So even with many workers, the shared row is rarely
-- written.
INSERT INTO pulse (name, at) VALUES (:name, shoal_now())
ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE pulse.at < excluded.at - :fresh;

-- name: show_presence
-- Find a note that is not too old.
SELECT at FROM pulse WHERE name = :name AND at > shoal_now() - :counts_for;
