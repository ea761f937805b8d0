-- name: last_event
-- The number of the last event.
SELECT last FROM event_number;

-- name: set_last_event
-- Store the number of the last event.
UPDATE event_number SET last = :last;

-- name: new_events
-- Committed events that have no number yet, the oldest first.
SELECT id, shoal_now() - created_at AS waited FROM outbox WHERE sequence IS NULL ORDER BY created_at, id LIMIT :limit;

-- name: sizes_of_events
-- Return the sizes of numbered events after a number, in order.
SELECT sequence, length(body) AS size FROM outbox WHERE sequence > :sequence ORDER BY sequence LIMIT :limit;

-- name: events_until
-- Numbered events after one number and up to a second number, in order.
SELECT sequence, id, type, subject, body, created_at FROM outbox WHERE sequence > :sequence AND sequence <= :last
ORDER BY sequence;

-- name: event_types_after
-- Return the types of numbered events after a number, in order.
SELECT sequence, type FROM outbox WHERE sequence > :sequence ORDER BY sequence LIMIT :limit;

-- name: event_types_between
-- Return the types of events created in a period, after a time and a number.
SELECT created_at, sequence, type FROM outbox
WHERE sequence > 0 AND (created_at, sequence) > (:since, :sequence) AND created_at < :until
ORDER BY created_at, sequence LIMIT :limit;

-- name: event
-- One numbered event.
SELECT sequence, id, type, subject, body, created_at FROM outbox WHERE id = :id AND sequence IS NOT NULL;

-- name: event_cursor
-- Return the position of a sink.
SELECT seen FROM event_cursor WHERE sink = :sink;

-- name: move_event_cursor
-- Move the position of a sink, unless it has moved since it was read.
INSERT INTO event_cursor (sink, seen) VALUES (:sink, :moved)
ON CONFLICT (sink) DO UPDATE SET seen = excluded.seen WHERE event_cursor.seen = :seen;

-- name: drop_cursor
-- Delete the position of a sink that is no longer used.
DELETE FROM event_cursor WHERE sink = :sink;

-- name: last_event_before
-- The number of the last event from before a time.
SELECT sequence FROM outbox WHERE sequence > 0 AND created_at < :before
ORDER BY created_at DESC, sequence DESC LIMIT 1;

-- name: least_taken
-- Return the last event that every enabled webhook has in its queue and every sink has processed.
SELECT (SELECT min(seen) FROM webhook WHERE enabled = 1) AS hooks, (SELECT min(seen) FROM event_cursor) AS sinks;

-- name: old_events
-- Return events up to a number that are past their retention, except those that a webhook still has to receive.
SELECT sequence FROM outbox AS o
WHERE sequence <= :until AND created_at < :before
      AND (SELECT 1 FROM delivery AS d
           WHERE d.sequence = o.sequence AND CASE WHEN d.state = 'waiting' THEN TRUE ELSE FALSE END
                 AND (SELECT w.enabled FROM webhook AS w WHERE w.id = d.webhook) = 1
           LIMIT 1) IS NULL
ORDER BY sequence LIMIT :limit;

-- name: forget_cursors
-- Delete the positions of sinks that are before a number.
DELETE FROM event_cursor WHERE seen < :before RETURNING sink;

-- name: insert_webhook
-- Store a webhook, unless its id exists already.
INSERT INTO webhook (id, url, events, secret, old_secret, old_until, enabled, reason, seen, failing_since, held_until,
                     created_at)
VALUES (:id, :url, :events, :secret, :old_secret, :old_until, :enabled, :reason, :cursor, :failing_since, :held_until,
        :created_at)
ON CONFLICT (id) DO NOTHING;

-- name: save_webhook
-- Store all mutable fields of a webhook.
UPDATE webhook
SET url = :url, events = :events, secret = :secret, old_secret = :old_secret, old_until = :old_until, enabled = :enabled,
    reason = :reason, seen = :cursor, failing_since = :failing_since, held_until = :held_until
WHERE id = :id;

-- name: hold_webhook
-- Pause a webhook until a time.
UPDATE webhook SET held_until = shoal_now() + :wait WHERE id = :id;

-- name: webhook
-- One webhook.
SELECT * FROM webhook WHERE id = :id;

-- name: webhooks
-- Every webhook, the oldest first.
SELECT * FROM webhook ORDER BY created_at, id;

-- name: remove_webhook
-- Delete a webhook and, by the foreign key, its queue.
DELETE FROM webhook WHERE id = :id;

-- name: due_webhooks
-- Enabled webhooks that are not held and have a delivery due.
SELECT w.id FROM webhook AS w
WHERE w.enabled = 1 AND w.held_until <= shoal_now()
      AND (SELECT 1 FROM delivery AS d WHERE d.webhook = w.id AND d.state = 'waiting' AND d.next_at <= shoal_now()
           ORDER BY d.next_at LIMIT 1) = 1
ORDER BY w.id;

-- name: delivery_failed
-- Store a failed attempt of a delivery: the delivery waits again, or is dead. A delivery that was replayed in the
-- meantime has a different number of attempts and is not changed.
UPDATE delivery
SET state = :state, next_at = shoal_now() + :wait, status = :status, error = :error
WHERE webhook = :webhook AND sequence = :sequence AND CASE WHEN state = 'waiting' THEN TRUE ELSE FALSE END
      AND attempts = :attempts;

-- name: deliveries
-- Return deliveries of a webhook, newest first. The query reads :scan deliveries before a number and returns those in
-- the given state.
SELECT d.webhook, d.sequence, d.state, d.attempts, d.next_at, d.status, d.error,
       (SELECT o.id FROM outbox AS o WHERE o.sequence = d.sequence) AS event_id,
       (SELECT o.type FROM outbox AS o WHERE o.sequence = d.sequence) AS event_type
FROM (SELECT * FROM delivery AS t WHERE t.webhook >= :webhook AND (t.webhook, t.sequence) < (:webhook, :before)
      ORDER BY t.webhook DESC, t.sequence DESC LIMIT :scan) AS d
WHERE CAST(:state AS TEXT) IS NULL OR d.state = :state
ORDER BY d.webhook DESC, d.sequence DESC LIMIT :limit;

-- name: delivery_before
-- Return the number of the webhook's delivery that is :skip deliveries before the last delivery before :before.
SELECT t.sequence FROM delivery AS t WHERE t.webhook >= :webhook AND (t.webhook, t.sequence) < (:webhook, :before)
ORDER BY t.webhook DESC, t.sequence DESC LIMIT 1 OFFSET :skip;

-- name: deliveries_that_died
-- Dead letters of a webhook, the newest first, before a number.
SELECT d.webhook, d.sequence, d.state, d.attempts, d.next_at, d.status, d.error,
       (SELECT o.id FROM outbox AS o WHERE o.sequence = d.sequence) AS event_id,
       (SELECT o.type FROM outbox AS o WHERE o.sequence = d.sequence) AS event_type
FROM delivery AS d
WHERE d.webhook = :webhook AND d.sequence < :before AND d.state = 'dead'
ORDER BY d.sequence DESC LIMIT :limit;

-- name: waiting_deliveries
-- Return how many deliveries of a webhook wait.
SELECT count(*) AS count FROM delivery WHERE webhook = :webhook AND state = 'waiting';

-- name: dead_deliveries
-- Return how many deliveries of a webhook are dead.
SELECT count(*) AS count FROM delivery WHERE webhook = :webhook AND state = 'dead';
