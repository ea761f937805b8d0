-- name: append_event
-- Keep an event until whoever wants it has it.
INSERT INTO outbox (id, type, subject, body, created_at) VALUES (:id, :type, :subject, :body, shoal_now());
