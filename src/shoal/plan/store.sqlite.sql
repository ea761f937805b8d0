-- name: insert_policies
-- Store policies, except those whose ids exist already.
-- rows: id project line spec enabled planned_at next_run_at created_at
INSERT INTO policy (id, project, line, spec, enabled, planned_at, next_run_at, created_at)
VALUES (:id, :project, :line, :spec, :enabled, :planned_at, :next_run_at, :created_at)
ON CONFLICT (id) DO NOTHING;

-- name: advance_policies
-- Move policies to their next run times, unless they have changed since they were read.
UPDATE policy
SET planned_at = :planned_at, next_run_at = :next_run_at, queued = :queued,
    runs = runs + :begun, last_run_at = CASE WHEN :begun = 1 THEN shoal_now() ELSE last_run_at END,
    live_crawl = coalesce(:crawl, live_crawl)
WHERE id = :id AND coalesce(next_run_at, 0) = :seen AND runs = :seen_runs;

-- name: note_policies
-- Record the end of a run in its policy. In the error rate, the last five runs weigh most.
UPDATE policy
SET last_success_at = CASE WHEN :success = 1 THEN max(coalesce(last_success_at, 0), coalesce(:at, shoal_now())) ELSE last_success_at END,
    last_hash = coalesce(:hash, last_hash),
    error_rate = error_rate * 0.8 + 0.2 * (1 - :success),
    frequency_now = coalesce(:frequency_now, frequency_now),
    planned_at = planned_at + :shift, next_run_at = next_run_at + :shift
WHERE id = :id;

-- name: forget_boosts
-- Remove boosts that ended before a time.
DELETE FROM business_signal
WHERE subject IN (SELECT subject FROM business_signal WHERE until < :before ORDER BY until LIMIT :limit);
