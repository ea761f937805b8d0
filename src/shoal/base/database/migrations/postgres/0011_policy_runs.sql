-- The policy whose run a crawl is. Until now it was only part of the id.
ALTER TABLE crawl ADD COLUMN policy_id TEXT;
UPDATE crawl SET policy_id = regexp_replace(id, '-[^-]*$', '') WHERE id ~ '^pol_.*-';

-- From now on a run is recorded on its policy in the commit that ends it. The ends before this point are read from the
-- events: those after the cursor, up to the last event there is now, which has its number once it was forwarded.
INSERT INTO event_cursor (sink, seen) SELECT 'policies', 0 WHERE EXISTS (SELECT 1 FROM policy) ON CONFLICT (sink) DO NOTHING;
INSERT INTO event_cursor (sink, seen)
SELECT 'policies until', (SELECT last FROM event_number) + (SELECT count(*) FROM outbox WHERE sequence IS NULL)
WHERE EXISTS (SELECT 1 FROM event_cursor WHERE sink = 'policies');
