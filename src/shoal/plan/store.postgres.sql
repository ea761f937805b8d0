-- name: insert_policies
-- Store policies, except those whose ids exist already.
-- rows: id project line spec enabled planned_at next_run_at created_at
INSERT INTO policy (id, project, line, spec, enabled, planned_at, next_run_at, created_at)
SELECT * FROM unnest(:id::text[], :project::text[], :line::text[], :spec::text[], :enabled::smallint[], :planned_at::bigint[],
                     :next_run_at::bigint[], :created_at::bigint[])
     AS g (id, project, line, spec, enabled, planned_at, next_run_at, created_at)
ORDER BY id
ON CONFLICT (id) DO NOTHING;

-- name: advance_policies
-- Move policies to their next run times, unless they have changed since they were read.
-- batch: arrays
UPDATE policy
SET planned_at = g.planned_at, next_run_at = g.next_run_at, queued = g.queued,
    runs = runs + g.begun, last_run_at = CASE WHEN g.begun = 1 THEN shoal_now() ELSE last_run_at END,
    live_crawl = coalesce(g.crawl, policy.live_crawl)
FROM unnest(:id::text[], :seen::bigint[], :seen_runs::bigint[], :planned_at::bigint[], :next_run_at::bigint[], :queued::smallint[], :begun::smallint[],
            :crawl::text[])
     AS g (id, seen, seen_runs, planned_at, next_run_at, queued, begun, crawl)
WHERE policy.id >= g.id AND policy.id <= g.id AND coalesce(policy.next_run_at, 0) = g.seen AND policy.runs = g.seen_runs
      AND policy.id = ANY(ARRAY(SELECT p.id FROM policy AS p WHERE p.id = ANY(:id::text[]) ORDER BY p.id FOR UPDATE));

-- name: note_policies
-- Record the end of a run in its policy. In the error rate, the last five runs weigh most.
-- batch: arrays
UPDATE policy
SET last_success_at = CASE WHEN g.success = 1 THEN greatest(coalesce(policy.last_success_at, 0), coalesce(g.at, shoal_now()))
                           ELSE policy.last_success_at END,
    last_hash = coalesce(g.hash, policy.last_hash),
    error_rate = policy.error_rate * 0.8 + 0.2 * (1 - g.success),
    frequency_now = coalesce(g.frequency_now, policy.frequency_now),
    planned_at = policy.planned_at + g.shift, next_run_at = policy.next_run_at + g.shift
FROM unnest(:id::text[], :success::smallint[], :at::bigint[], :hash::text[], :frequency_now::bigint[], :shift::bigint[])
     AS g (id, success, at, hash, frequency_now, shift)
WHERE policy.id >= g.id AND policy.id <= g.id;

-- name: forget_boosts
-- Remove boosts that ended before a time.
DELETE FROM business_signal WHERE subject = ANY(ARRAY(
    SELECT subject FROM business_signal WHERE until < :before ORDER BY until LIMIT :limit FOR UPDATE SKIP LOCKED));
