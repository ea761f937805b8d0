-- A crawl without a speed now has no delay if it sets its concurrency, or if its seeds are on the same machine. The
-- policies that exist keep their rate.
UPDATE policy SET spec = json_set(spec, '$.crawl_config.speed', 'normal')
WHERE line = 'site' AND json_extract(spec, '$.crawl_config.speed') IS NULL;
