-- name: lock_node
-- Return a node's session. The write lock is held already.
SELECT instance, controller FROM node WHERE id = :id;

-- name: store_heartbeats
-- Store the newest status of a session that is still current. A node that was declared lost meanwhile is no longer
-- lost.
-- rows: id epoch state status heartbeat_every controller
UPDATE node
SET state = :state, status = :status, heartbeat_every = :heartbeat_every, heartbeat_at = shoal_now(), lost_at = NULL,
    controller = CASE WHEN lost_at IS NULL THEN controller ELSE :controller END
WHERE id = :id AND session_epoch = :epoch
RETURNING id;

-- name: lock_desired_states
-- Return the desired states of these nodes. The write lock is held already.
SELECT n.id, n.wish FROM json_each(:ids) AS i CROSS JOIN node AS n ON n.id = i.value;

-- name: save_desired_states
-- Store the desired states of nodes.
-- rows: id wish
UPDATE node SET wish = :wish WHERE id = :id;

-- name: forget_lost_nodes
-- Remove nodes that were lost long ago.
DELETE FROM node
WHERE id IN (SELECT id FROM node WHERE lost_at < shoal_now() - :age ORDER BY lost_at LIMIT :limit)
RETURNING id, wish, session_epoch;

-- name: insert_departed
-- Keep the desired states of removed nodes.
-- rows: id wish epoch
INSERT INTO departed_node (id, wish, session_epoch, left_at) VALUES (:id, :wish, :epoch, shoal_now())
ON CONFLICT (id) DO UPDATE
SET wish = excluded.wish, session_epoch = excluded.session_epoch, left_at = excluded.left_at;

-- name: forget_departed
-- Delete the data of removed nodes: soon if there is no desired state, otherwise after a long time.
DELETE FROM departed_node
WHERE id IN (SELECT id FROM departed_node
             WHERE left_at < shoal_now() - :age AND (wish = '{}' OR left_at < shoal_now() - :longest)
             ORDER BY left_at LIMIT :limit);

-- name: insert_commands
-- Store commands that wait to be sent.
-- rows: id node_id command form created_by
INSERT INTO node_command (id, node_id, command, form, state, created_by, created_at)
VALUES (:id, :node_id, :command, :form, 'waiting', :created_by, shoal_now());

-- name: mark_commands_sent
-- Record that waiting commands were sent. Commands with `ended` = 1 also end, because no response will come.
UPDATE node_command
SET state = CASE WHEN :ended = 1 THEN 'unconfirmed' ELSE 'sent' END, sent_at = shoal_now(),
    ended_at = CASE WHEN :ended = 1 THEN shoal_now() END
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'waiting';

-- name: end_commands
-- Record a node's responses to its commands.
-- rows: id node_id state detail
UPDATE node_command SET state = :state, detail = :detail, ended_at = shoal_now()
WHERE id = :id AND node_id = :node_id AND ended_at IS NULL
RETURNING id;

-- name: expire_commands
-- End commands that got no response in time.
UPDATE node_command SET state = 'expired', ended_at = shoal_now()
WHERE id IN (SELECT id FROM node_command WHERE ended_at IS NULL AND created_at < shoal_now() - :age
             ORDER BY id LIMIT :limit)
RETURNING id, node_id;

-- name: forget_commands
-- Remove commands that ended long ago.
DELETE FROM node_command
WHERE id IN (SELECT id FROM node_command WHERE ended_at < shoal_now() - :keep ORDER BY ended_at LIMIT :limit);

-- name: forget_lapses
-- Forget the lapsed offers of nodes that have leased a job since then and still hold that job. The name of a lease
-- holder begins with the node id.
UPDATE node SET lapsed_offers = 0
WHERE lapsed_offers > 0
      AND EXISTS (SELECT 1 FROM job WHERE job.state = 'locked' AND job.lease_until > 0 AND job.granted_at >= node.lapsed_at
                  AND substr(job.lease_holder, 1, length(node.id) + 1) = node.id || '/');

-- name: wait_for_commands_again
-- Mark commands that were sent to an earlier session of a node as waiting again.
UPDATE node_command SET state = 'waiting', sent_at = NULL WHERE node_id = :node_id AND state = 'sent';
