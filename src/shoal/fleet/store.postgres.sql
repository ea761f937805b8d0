-- name: lock_node
-- Return a node's session, locked so that no other transaction can begin a session of this node.
SELECT instance, controller FROM node WHERE id = :id FOR UPDATE;

-- name: store_heartbeats
-- Store the newest status of sessions that are still current. A node that was declared lost meanwhile is no longer
-- lost.
-- rows: id epoch state status heartbeat_every controller
UPDATE node
SET state = g.state, status = g.status, heartbeat_every = g.heartbeat_every, heartbeat_at = t.now, lost_at = NULL,
    controller = CASE WHEN node.lost_at IS NULL THEN node.controller ELSE g.controller END
FROM unnest(:id::text[], :epoch::bigint[], :state::text[], :status::text[], :heartbeat_every::bigint[], :controller::text[])
     AS g (id, epoch, state, status, heartbeat_every, controller), (SELECT shoal_now() AS now) AS t
WHERE node.id = ANY(ARRAY(SELECT n.id FROM node AS n WHERE n.id = ANY(:id::text[]) ORDER BY n.id FOR NO KEY UPDATE))
      AND node.id = g.id AND node.session_epoch = g.epoch
RETURNING node.id;

-- name: lock_desired_states
-- Return the desired states of these nodes, locked in the order of the node ids.
SELECT id, wish FROM node WHERE id = ANY(:ids::text[]) ORDER BY id FOR UPDATE;

-- name: save_desired_states
-- Store the desired states of nodes.
-- rows: id wish
UPDATE node SET wish = g.wish
FROM unnest(:id::text[], :wish::text[]) AS g (id, wish) WHERE node.id = ANY(:id::text[]) AND node.id = g.id;

-- name: forget_lost_nodes
-- Remove nodes that were lost long ago.
DELETE FROM node
WHERE id = ANY(ARRAY(SELECT id FROM node WHERE lost_at < shoal_now() - :age ORDER BY lost_at LIMIT :limit
                     FOR UPDATE SKIP LOCKED))
      AND CASE WHEN lost_at IS NULL THEN FALSE ELSE TRUE END
RETURNING id, wish, session_epoch;

-- name: insert_departed
-- Keep the desired states of removed nodes.
-- rows: id wish epoch
INSERT INTO departed_node (id, wish, session_epoch, left_at)
SELECT g.id, g.wish, g.epoch, shoal_now() FROM unnest(:id::text[], :wish::text[], :epoch::bigint[]) AS g (id, wish, epoch)
ORDER BY g.id
ON CONFLICT (id) DO UPDATE
SET wish = excluded.wish, session_epoch = excluded.session_epoch, left_at = excluded.left_at;

-- name: forget_departed
-- Delete the data of removed nodes: soon if there is no desired state, otherwise after a long time.
DELETE FROM departed_node
WHERE id = ANY(ARRAY(SELECT id FROM departed_node
                     WHERE left_at < shoal_now() - :age AND (wish = '{}' OR left_at < shoal_now() - :longest)
                     ORDER BY left_at LIMIT :limit FOR UPDATE SKIP LOCKED));

-- name: insert_commands
-- Store commands that wait to be sent.
-- rows: id node_id command form created_by
INSERT INTO node_command (id, node_id, command, form, state, created_by, created_at)
SELECT g.id, g.node_id, g.command, g.form, 'waiting', g.created_by, shoal_now()
FROM unnest(:id::text[], :node_id::text[], :command::text[], :form::text[], :created_by::text[])
     AS g (id, node_id, command, form, created_by);

-- name: mark_commands_sent
-- Record that waiting commands were sent. Commands with `ended` = 1 also end, because no response will come.
UPDATE node_command
SET state = CASE WHEN :ended = 1 THEN 'unconfirmed' ELSE 'sent' END, sent_at = shoal_now(),
    ended_at = CASE WHEN :ended = 1 THEN shoal_now() END
WHERE id = ANY(ARRAY(SELECT c.id FROM node_command AS c WHERE c.id = ANY(:ids::text[]) ORDER BY c.id FOR UPDATE))
      AND state = 'waiting';

-- name: end_commands
-- Record a node's responses to its commands.
-- rows: id node_id state detail
UPDATE node_command SET state = g.state, detail = g.detail, ended_at = shoal_now()
FROM unnest(:id::text[], :node_id::text[], :state::text[], :detail::text[]) AS g (id, node_id, state, detail)
WHERE node_command.id = ANY(ARRAY(SELECT c.id FROM node_command AS c WHERE c.id = ANY(:id::text[]) ORDER BY c.id FOR UPDATE))
      AND node_command.id = g.id
      AND CASE WHEN node_command.ended_at IS NULL THEN node_command.node_id = g.node_id ELSE FALSE END
RETURNING node_command.id;

-- name: expire_commands
-- End commands that got no response in time.
UPDATE node_command SET state = 'expired', ended_at = shoal_now()
WHERE id = ANY(ARRAY(SELECT id FROM node_command WHERE ended_at IS NULL AND created_at < shoal_now() - :age
                     ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED))
      AND CASE WHEN ended_at IS NULL THEN TRUE ELSE FALSE END
RETURNING id, node_id;

-- name: forget_commands
-- Remove commands that ended long ago.
DELETE FROM node_command
WHERE id = ANY(ARRAY(SELECT id FROM node_command WHERE ended_at < shoal_now() - :keep ORDER BY ended_at LIMIT :limit
                     FOR UPDATE SKIP LOCKED));

-- name: forget_lapses
-- Forget the lapsed offers of nodes that have leased a job since then and still hold that job. The name of a lease
-- holder begins with the node id.
UPDATE node SET lapsed_offers = 0
WHERE id = ANY(ARRAY(SELECT n.id FROM node AS n
                     WHERE n.lapsed_offers > 0
                           AND EXISTS (SELECT 1 FROM job AS j
                                       WHERE j.state = 'locked' AND j.lease_until > 0 AND j.granted_at >= n.lapsed_at
                                             AND substr(j.lease_holder, 1, length(n.id) + 1) = n.id || '/')
                     ORDER BY n.id FOR NO KEY UPDATE OF n));

-- name: wait_for_commands_again
-- Mark commands that were sent to an earlier session of a node as waiting again.
UPDATE node_command SET state = 'waiting', sent_at = NULL
WHERE id = ANY(ARRAY(SELECT c.id FROM node_command AS c WHERE c.node_id = :node_id AND c.state = 'sent'
                     ORDER BY c.id FOR UPDATE));
