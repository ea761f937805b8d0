-- name: append_events
-- Keep events until whoever wants them has them.
-- batch: arrays
INSERT INTO outbox (id, type, subject, body, created_at)
SELECT e.*, shoal_now() FROM unnest(:id::text[], :type::text[], :subject::text[], :body::text[]) AS e;
