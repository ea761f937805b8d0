-- name: append_events
-- Keep an event of many until whoever wants it has it.
INSERT INTO outbox (id, type, subject, body, created_at) VALUES (:id, :type, :subject, :body, shoal_now());
