-- name: fate_of
-- Return the fate of one URL.
SELECT fate FROM fate WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: taken_urls
-- URLs that walkers have taken, by walker and position.
SELECT f.job_id, f.epoch, f.seq, f.due, f.parent, f.attempts, f.crashes, f.kind, f.path, f.start, f.chain,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin
FROM frontier_touched AS f
WHERE f.crawl = :crawl AND f.job_id > ''
ORDER BY f.job_id, f.epoch, f.seq
LIMIT :limit;

-- name: sitemaps_after
-- The sitemaps of a crawl after a key.
SELECT key, chk, url, fetched_at, status, listed, problem, entries FROM sitemap
WHERE crawl = :crawl AND (key, chk) > (:key, :chk)
ORDER BY key, chk
LIMIT :limit;

-- name: target_of
-- Return the URL that redirects to the given URL, and the fate of the given URL.
SELECT url, via, fate FROM redirect_target WHERE crawl = :crawl AND key = :key AND chk = :chk;

-- name: targets_after
-- Return the redirect targets of a crawl, after a key.
SELECT key, chk, url, via, fate FROM redirect_target
WHERE crawl = :crawl AND (key, chk) > (:key, :chk)
ORDER BY key, chk
LIMIT :limit;

-- name: keep_target
-- Store a redirect target that was dumped from another store.
INSERT INTO redirect_target (crawl, key, chk, fate, url, via) VALUES (:crawl, :key, :chk, :fate, :url, :via)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: drop_targets
-- Delete the redirect targets of a crawl.
DELETE FROM redirect_target WHERE crawl = :crawl;

-- name: drop_sitemaps
-- Delete the sitemaps of a crawl.
DELETE FROM sitemap WHERE crawl = :crawl;

-- name: touched_after
-- Return stored URLs that were taken at least once, after a position.
SELECT f.seq, f.host, f.due, f.parent, f.attempts, f.crashes, f.kind, f.path, f.start, f.chain,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin
FROM frontier_touched AS f
WHERE f.crawl = :crawl AND f.seq > :seq
ORDER BY f.seq
LIMIT :limit;

-- name: untried_after
-- Return stored URLs that were never taken, after a position. The URLs of each host are in the order in which they
-- would be taken.
SELECT f.host, f.seq, 0 AS due, f.parent, 0 AS attempts, 0 AS crashes, f.kind, f.path, NULL AS start, NULL AS chain,
       (SELECT h.origin FROM host AS h WHERE h.number = f.host) AS origin
FROM frontier AS f
WHERE f.crawl = :crawl AND (f.host, f.seq) > (:host, :seq)
ORDER BY f.host, f.seq
LIMIT :limit;

-- name: receive_crawl
-- Insert a crawl that is loaded from another store, unless its id is taken.
INSERT INTO crawl (id, state, state_reason, project, config, named, priority, key_seed, policy_id, created_at, finished_at)
VALUES (:id, 'stopped', :reason, :project, :config, :named, :priority, :key_seed, :policy_id, shoal_now(), shoal_now())
ON CONFLICT (id) DO NOTHING
RETURNING number;

-- name: admit_crawl
-- Mark a loaded crawl as complete, and restore its state.
UPDATE crawl
SET state = :state, state_reason = :state_reason, created_at = :created_at, started_at = :started_at,
    finished_at = :finished_at
WHERE number = :crawl AND state = 'stopped' AND state_reason = :loading;

-- name: keep_trap
-- Store a trap pattern that was dumped from another store.
INSERT INTO trap (crawl, pattern, state, sample, count) VALUES (:crawl, :pattern, :state, :sample, :count)
ON CONFLICT (crawl, pattern) DO NOTHING;

-- name: drop_traps
-- Delete the trap patterns of a crawl.
DELETE FROM trap WHERE crawl = :crawl;

-- name: drop_trap_scores
-- Delete the scores of the patterns of a crawl.
DELETE FROM trap_score WHERE crawl = :crawl;

-- name: drop_frontier_hosts
-- Delete the hosts of a crawl.
DELETE FROM frontier_host WHERE crawl = :crawl;

-- name: last_of_some_pages
-- Return the number of the last page among the first :limit pages of a crawl.
SELECT max(number) AS number FROM (SELECT number FROM page WHERE crawl = :crawl ORDER BY number LIMIT :limit) AS chosen;

-- name: drop_counters
-- Delete the counters of a crawl.
DELETE FROM crawl_counter WHERE crawl = :crawl;

-- name: drop_skips
-- Delete the skip counts of a crawl.
DELETE FROM crawl_skip WHERE crawl = :crawl;

-- name: drop_jobs
-- Delete the jobs of a run; return their ids.
DELETE FROM job WHERE run_id = :run_id RETURNING id;

-- name: drop_crawl
-- Delete a crawl.
DELETE FROM crawl WHERE number = :number;

-- name: hosts_of_crawl
-- The hosts of a crawl, those with most pages first.
SELECT host, pages, ready_at FROM frontier_host WHERE crawl = :crawl ORDER BY pages DESC, host LIMIT :limit;

-- name: hosts_in_full
-- Return hosts with their states and their robots.txt.
SELECT number, origin, next_at, delay, held_until, held_status, backoff, latency, latency_at, robots_state, robots,
       robots_hash, robots_at, shoal_now() AS now
FROM host WHERE number = ANY(:numbers::int[]);
