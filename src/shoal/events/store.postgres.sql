-- name: append_events
-- Store events until all receivers have them.
-- rows: id type subject body
INSERT INTO outbox (id, type, subject, body, created_at)
SELECT g.id, g.type, g.subject, g.body, shoal_now()
FROM unnest(:id::text[], :type::text[], :subject::text[], :body::text[]) AS g (id, type, subject, body);

-- name: lock_event_number
-- Lock the numbering of events; other processes wait.
SELECT last FROM event_number FOR UPDATE;

-- name: number_events
-- Give events their numbers.
-- batch: arrays
UPDATE outbox SET sequence = g.sequence
FROM unnest(:id::text[], :sequence::bigint[]) AS g (id, sequence) WHERE outbox.id >= g.id AND outbox.id <= g.id;

-- name: lock_webhook
-- Return one webhook, locked against changes.
SELECT * FROM webhook WHERE id = :id FOR UPDATE;

-- name: put_deliveries
-- Add events to a webhook's queue, to be sent immediately, even if they were in the queue before.
-- batch: arrays
INSERT INTO delivery (webhook, sequence, state, attempts, next_at)
SELECT g.webhook, g.sequence, 'waiting', 0, shoal_now() FROM unnest(:webhook::text[], :sequence::bigint[]) AS g (webhook, sequence)
ORDER BY g.sequence, g.webhook
ON CONFLICT (webhook, sequence) DO UPDATE SET state = 'waiting', attempts = 0, next_at = excluded.next_at, error = NULL;

-- name: due_deliveries
-- Return due deliveries of a webhook, with the sizes of their events, locked against other couriers.
SELECT d.webhook, d.sequence, d.state, d.attempts + 1 AS attempts, d.next_at, d.status, d.error, o.event_id, o.event_type,
       o.size
FROM delivery AS d
CROSS JOIN LATERAL (SELECT id AS event_id, type AS event_type, length(body) AS size FROM outbox
                    WHERE sequence = d.sequence OFFSET 0) AS o
WHERE d.webhook = :webhook AND d.state = 'waiting' AND d.next_at <= shoal_now()
ORDER BY d.next_at, d.sequence LIMIT :limit
FOR UPDATE OF d SKIP LOCKED;

-- name: numbered_events
-- The events with these numbers.
SELECT sequence, id, type, subject, body, created_at FROM outbox WHERE sequence = ANY(:sequences::bigint[]);

-- name: forget_events
-- Delete events.
-- batch: arrays
DELETE FROM outbox WHERE sequence = ANY(:sequence::bigint[]);

-- name: forget_deliveries
-- Delete the deliveries of events. Once the rows are locked, they are looked up by key, because a row that was changed
-- in the meantime has a different location.
-- batch: arrays
DELETE FROM delivery WHERE sequence = ANY(ARRAY(
    SELECT d.sequence FROM delivery AS d WHERE d.sequence = ANY(:sequence::bigint[]) ORDER BY d.sequence, d.webhook FOR UPDATE));

-- name: try_delivery
-- Count an attempt of each delivery, and reserve it for a while.
-- batch: arrays
UPDATE delivery SET attempts = attempts + 1, next_at = shoal_now() + g.reserved_for
FROM unnest(:webhook::text[], :sequence::bigint[], :reserved_for::bigint[]) AS g (webhook, sequence, reserved_for)
WHERE delivery.webhook = ANY(ARRAY[g.webhook]) AND delivery.sequence >= g.sequence AND delivery.sequence <= g.sequence;

-- name: give_back_deliveries
-- Return reserved deliveries that were not attempted. A delivery that was replayed in the meantime has a different
-- number of attempts and is not changed.
-- rows: webhook sequence attempts next_at
UPDATE delivery SET attempts = delivery.attempts - 1, next_at = g.next_at
FROM (SELECT * FROM unnest(:webhook::text[], :sequence::bigint[], :attempts::int[], :next_at::bigint[])
               AS g (webhook, sequence, attempts, next_at) ORDER BY sequence, webhook) AS g
WHERE delivery.webhook = ANY(ARRAY[g.webhook]) AND delivery.sequence >= g.sequence AND delivery.sequence <= g.sequence
      AND CASE WHEN delivery.state = 'waiting' THEN TRUE ELSE FALSE END AND delivery.attempts = g.attempts;

-- name: delivered
-- Mark deliveries as successful.
-- batch: arrays
UPDATE delivery SET state = 'delivered', error = NULL, status = g.status
FROM (SELECT * FROM unnest(:webhook::text[], :sequence::bigint[], :status::int[])
               AS g (webhook, sequence, status) ORDER BY sequence, webhook) AS g
WHERE delivery.webhook = ANY(ARRAY[g.webhook]) AND delivery.sequence >= g.sequence AND delivery.sequence <= g.sequence;

-- name: empty_webhook
-- Delete the first deliveries of a webhook. The query orders by both key columns and compares the webhook as a range,
-- because only one index has that order. Once the rows are locked, they are looked up by key, because a row that was
-- changed in the meantime has a different location.
WITH first AS MATERIALIZED (
    SELECT d.webhook, d.sequence FROM delivery AS d WHERE d.webhook >= :webhook AND d.webhook <= :webhook
    ORDER BY d.webhook, d.sequence LIMIT :limit FOR UPDATE
)
DELETE FROM delivery USING first
WHERE delivery.webhook = ANY(ARRAY[first.webhook]) AND delivery.sequence >= first.sequence AND delivery.sequence <= first.sequence;
