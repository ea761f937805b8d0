-- name: node
-- One node.
SELECT id, state, session_epoch, controller, address, status, wish, heartbeat_every, connected_at, heartbeat_at, lost_at,
       lapsed_offers, shoal_now() AS seen_at
FROM node WHERE id = :id;

-- name: all_nodes
-- Every node.
SELECT id, state, session_epoch, controller, address, status, wish, heartbeat_every, connected_at, heartbeat_at, lost_at,
       lapsed_offers, shoal_now() AS seen_at
FROM node ORDER BY id;

-- name: overdue_nodes
-- Return nodes that missed their heartbeats and are not lost yet, the longest silent node first.
SELECT id, state, session_epoch, controller, address, status, wish, heartbeat_every, connected_at, heartbeat_at, lost_at,
       lapsed_offers, shoal_now() AS seen_at
FROM node WHERE lost_at IS NULL AND heartbeat_at < shoal_now() - :missed * heartbeat_every
ORDER BY heartbeat_at LIMIT :limit;

-- name: count_nodes
-- Return how many nodes are not lost.
SELECT count(*) FROM node WHERE lost_at IS NULL;

-- name: private_lane_depths
-- Return how many due jobs wait in each private lane, by kind and capability. Only jobs in private lanes are offered,
-- so the index of offers contains all these jobs.
SELECT lane, kind, capability, count(*) AS jobs FROM job
WHERE offered_until > 0 AND CASE WHEN state = 'pending' THEN due = 1 ELSE FALSE END
GROUP BY lane, kind, capability;

-- name: lane_depth_by_kind
-- Return how many due jobs wait in a lane, by kind and capability.
SELECT kind, capability, count(*) AS jobs FROM job WHERE state = 'pending' AND due = 1 AND lane = :lane
GROUP BY kind, capability;

-- name: count_renderers
-- Return how many nodes take jobs and can render. The status is JSON, written by us without spaces.
SELECT count(*) FROM node
WHERE state = 'connected' AND controller IS NOT NULL AND status LIKE '%"capabilities":[%"js"%';

-- name: abandoned_lanes
-- Among the oldest offers, return the private lanes whose node is gone or leases no jobs. A lane is named after its
-- node.
SELECT DISTINCT o.lane
FROM (SELECT lane FROM job WHERE offered_until > 0 ORDER BY offered_until LIMIT :limit) AS o
WHERE coalesce((SELECT n.state FROM node AS n WHERE n.id = substr(o.lane, 6)), 'lost') <> 'connected';

-- name: count_lapse
-- Record that a node did not take the jobs that were offered to it.
UPDATE node SET lapsed_offers = lapsed_offers + 1, lapsed_at = shoal_now() WHERE id = :id;

-- name: begin_session
-- Store a node with a new session, which ends any earlier session. The desired state of a known node stays.
INSERT INTO node (id, state, session_epoch, instance, controller, address, status, wish, heartbeat_every, connected_at,
                  heartbeat_at, lost_at)
VALUES (:id, :state, :epoch, :instance, :controller, :address, :status, :wish, :heartbeat_every, shoal_now(), shoal_now(),
        NULL)
ON CONFLICT (id) DO UPDATE
SET state = excluded.state, session_epoch = node.session_epoch + 1, instance = excluded.instance,
    controller = excluded.controller, address = excluded.address, status = excluded.status,
    heartbeat_every = excluded.heartbeat_every, connected_at = excluded.connected_at, heartbeat_at = excluded.heartbeat_at,
    lost_at = NULL
RETURNING session_epoch, wish;

-- name: disconnect_node
-- Record that a session broke off.
UPDATE node SET controller = NULL WHERE id = :id AND session_epoch = :epoch;

-- name: remove_node
-- Remove a node whose session ended.
DELETE FROM node WHERE id = :id AND session_epoch = :epoch RETURNING id, wish, session_epoch;

-- name: lose_node
-- Declare a node lost, if the given session is still overdue.
UPDATE node SET state = 'lost', controller = NULL, lost_at = shoal_now()
WHERE id = :id AND session_epoch = :epoch AND lost_at IS NULL AND heartbeat_at < shoal_now() - :missed * heartbeat_every;

-- name: return_departed
-- Remove and return the data that was kept about a removed node.
DELETE FROM departed_node WHERE id = :id RETURNING wish, session_epoch;

-- name: waiting_commands
-- Return the commands for nodes whose session is on this controller that wait to be sent, oldest first.
SELECT c.id, c.node_id, c.command, c.form, c.state, c.detail, c.created_at, c.created_by, c.sent_at, c.ended_at
FROM node_command AS c
WHERE c.ended_at IS NULL AND c.state = 'waiting' AND (SELECT n.controller FROM node AS n WHERE n.id = c.node_id) = :controller
ORDER BY c.id LIMIT :limit;

-- name: commands_of_node
-- Return the latest commands of a node, newest first.
SELECT id, node_id, command, form, state, detail, created_at, created_by, sent_at, ended_at
FROM node_command WHERE node_id = :node_id ORDER BY id DESC LIMIT :limit;

-- name: command
-- One command.
SELECT id, node_id, command, form, state, detail, created_at, created_by, sent_at, ended_at
FROM node_command WHERE id = :id;
