-- name: keep_urls
-- A URL that was kept elsewhere is kept here.
INSERT INTO frontier (crawl, host, due, depth, seq, key, chk, parent, attempts, crashes, kind, path)
VALUES (:crawl, :host, :due, :depth, :seq, :key, :chk, :parent, :attempts, :crashes, :kind, :path);

-- name: drop_urls
-- A URL leaves the frontier.
DELETE FROM frontier WHERE crawl = :crawl AND host = :host AND due = :due AND depth = :depth AND seq = :seq;

-- name: drop_fates
-- Forget that a URL was seen.
DELETE FROM fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: keep_host_pages
-- A host gave pages.
INSERT INTO frontier_host (crawl, host, pages) VALUES (:crawl, :host, :pages)
ON CONFLICT (crawl, host) DO UPDATE SET pages = frontier_host.pages + excluded.pages;

-- name: wake_hosts_at
-- Something waits at a host, not before a moment.
INSERT INTO frontier_host (crawl, host, ready_at) VALUES (:crawl, :host, :ready_at)
ON CONFLICT (crawl, host) DO UPDATE SET ready_at = excluded.ready_at
WHERE frontier_host.ready_at IS NULL OR frontier_host.ready_at > excluded.ready_at;
