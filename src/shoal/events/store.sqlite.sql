-- name: append_events
-- Store events until all receivers have them.
-- rows: id type subject body
INSERT INTO outbox (id, type, subject, body, created_at) VALUES (:id, :type, :subject, :body, shoal_now());

-- name: lock_event_number
-- The write lock is held already, so no other transaction numbers events.
SELECT last FROM event_number;

-- name: number_events
-- Give events their numbers.
UPDATE outbox SET sequence = :sequence WHERE id = :id;

-- name: lock_webhook
-- Return one webhook. The write lock is held already.
SELECT * FROM webhook WHERE id = :id;

-- name: put_deliveries
-- Add events to a webhook's queue, to be sent immediately, even if they were in the queue before.
INSERT INTO delivery (webhook, sequence, state, attempts, next_at) VALUES (:webhook, :sequence, 'waiting', 0, shoal_now())
ON CONFLICT (webhook, sequence) DO UPDATE SET state = 'waiting', attempts = 0, next_at = excluded.next_at, error = NULL;

-- name: due_deliveries
-- Return due deliveries of a webhook, with the sizes of their events.
SELECT d.webhook, d.sequence, d.state, d.attempts + 1 AS attempts, d.next_at, d.status, d.error, o.id AS event_id,
       o.type AS event_type, length(o.body) AS size
FROM delivery AS d JOIN outbox AS o ON o.sequence = d.sequence
WHERE d.webhook = :webhook AND d.state = 'waiting' AND d.next_at <= shoal_now()
ORDER BY d.next_at, d.sequence LIMIT :limit;

-- name: numbered_events
-- The events with these numbers.
SELECT o.sequence, o.id, o.type, o.subject, o.body, o.created_at
FROM json_each(:sequences) AS i CROSS JOIN outbox AS o ON o.sequence = i.value;

-- name: forget_events
-- Delete an event.
DELETE FROM outbox WHERE sequence = :sequence;

-- name: forget_deliveries
-- Delete the deliveries of events.
DELETE FROM delivery WHERE sequence = :sequence;

-- name: try_delivery
-- Count an attempt of each delivery, and reserve it for a while.
UPDATE delivery SET attempts = attempts + 1, next_at = shoal_now() + :reserved_for
WHERE webhook = :webhook AND sequence = :sequence;

-- name: give_back_deliveries
-- Return reserved deliveries that were not attempted. A delivery that was replayed in the meantime has a different
-- number of attempts and is not changed.
-- rows: webhook sequence attempts next_at
UPDATE delivery SET attempts = attempts - 1, next_at = :next_at
WHERE webhook = :webhook AND sequence = :sequence AND state = 'waiting' AND attempts = :attempts;

-- name: delivered
-- Mark deliveries as successful.
UPDATE delivery SET state = 'delivered', error = NULL, status = :status WHERE webhook = :webhook AND sequence = :sequence;

-- name: empty_webhook
-- Delete the first deliveries of a webhook.
DELETE FROM delivery WHERE webhook = :webhook AND sequence IN
    (SELECT sequence FROM delivery WHERE webhook = :webhook ORDER BY sequence LIMIT :limit);
