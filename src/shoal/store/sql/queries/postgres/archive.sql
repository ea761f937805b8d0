-- name: keep_urls
-- URLs that were kept elsewhere are kept here, behind each other as given.
-- batch: arrays
INSERT INTO frontier (crawl, host, due, depth, key, chk, parent, attempts, crashes, kind, path)
SELECT crawl, host, due, depth, key, chk, parent, attempts, crashes, kind, path
FROM unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :key::bigint[], :chk::int[], :parent::bigint[],
            :attempts::smallint[], :crashes::smallint[], :kind::smallint[], :path::text[])
     WITH ORDINALITY AS g (crawl, host, due, depth, key, chk, parent, attempts, crashes, kind, path, place)
ORDER BY place;

-- name: drop_urls
-- URLs leave the frontier.
-- batch: arrays
DELETE FROM frontier AS f
USING unnest(:crawl::int[], :host::int[], :due::bigint[], :depth::smallint[], :seq::bigint[]) AS g (crawl, host, due, depth, seq)
WHERE f.crawl = g.crawl AND f.host = g.host AND f.due = g.due AND f.depth = g.depth AND f.seq = g.seq;

-- name: drop_fates
-- Forget that URLs were seen.
-- batch: arrays
DELETE FROM fate AS f USING unnest(:crawl::int[], :key::bigint[], :chk::int[]) AS g (crawl, key, chk)
WHERE f.crawl = g.crawl AND f.key = g.key AND f.chk = g.chk;

-- name: keep_host_pages
-- Hosts gave pages.
-- batch: arrays
INSERT INTO frontier_host (crawl, host, pages)
SELECT * FROM unnest(:crawl::int[], :host::int[], :pages::bigint[]) AS g (crawl, host, pages) ORDER BY crawl, host
ON CONFLICT (crawl, host) DO UPDATE SET pages = frontier_host.pages + excluded.pages;

-- name: wake_hosts_at
-- Something waits at hosts, not before a moment.
-- batch: arrays
INSERT INTO frontier_host (crawl, host, ready_at)
SELECT * FROM unnest(:crawl::int[], :host::int[], :ready_at::bigint[]) AS g (crawl, host, ready_at) ORDER BY crawl, host
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;
