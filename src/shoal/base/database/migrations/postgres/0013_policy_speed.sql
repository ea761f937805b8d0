-- A crawl without a speed now has no delay if it sets its concurrency, or if its seeds are on the same machine. The
-- policies that exist keep their rate.
UPDATE policy SET spec = jsonb_set(spec::jsonb, '{crawl_config,speed}', '"normal"')::text
WHERE line = 'site' AND spec::jsonb #> '{crawl_config,speed}' IS NULL;
