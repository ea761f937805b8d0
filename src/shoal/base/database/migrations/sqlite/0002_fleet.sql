-- Nodes with a control plane, the commands for them, and why a job was dispatched to a lane.
CREATE TABLE node (
    id              TEXT PRIMARY KEY,
    state           TEXT NOT NULL CHECK (state IN ('connected', 'paused', 'draining', 'drained', 'lost')),
    session_epoch   INTEGER NOT NULL CHECK (session_epoch >= 0),
    instance        TEXT NOT NULL,
    controller      TEXT,  -- the controller that has its session; NULL: no session
    address         TEXT NOT NULL,
    status          TEXT NOT NULL,  -- JSON: what it reported last
    wish            TEXT NOT NULL DEFAULT '{}',  -- JSON: the state and limits that operators have set
    heartbeat_every INTEGER NOT NULL CHECK (heartbeat_every > 0),
    connected_at    INTEGER NOT NULL,
    heartbeat_at    INTEGER NOT NULL,
    lost_at         INTEGER,
    CHECK ((state = 'lost') = (lost_at IS NOT NULL)),
    CHECK (state <> 'lost' OR controller IS NULL)
);
CREATE INDEX node_lost ON node (lost_at) WHERE lost_at IS NOT NULL;

-- Nodes that deregistered or were forgotten: the state that operators want them to have, and their last epoch, for when
-- they come back.
CREATE TABLE departed_node (
    id            TEXT PRIMARY KEY,
    wish          TEXT NOT NULL,
    session_epoch INTEGER NOT NULL CHECK (session_epoch >= 0),
    left_at       INTEGER NOT NULL
);
CREATE INDEX departed_node_left ON departed_node (left_at);

CREATE TABLE node_command (
    id              TEXT PRIMARY KEY,
    node_id         TEXT NOT NULL,
    command         TEXT NOT NULL CHECK (command IN ('config_update', 'pause', 'resume', 'drain', 'restart_browser')),
    form            TEXT NOT NULL,  -- JSON: reason and values
    state           TEXT NOT NULL
        CHECK (state IN ('waiting', 'sent', 'applied', 'unsupported', 'failed', 'unconfirmed', 'expired')),
    detail          TEXT NOT NULL DEFAULT '',
    created_by      TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    sent_at         INTEGER,
    ended_at        INTEGER,
    CHECK ((state IN ('waiting', 'sent')) = (ended_at IS NULL))
);
CREATE INDEX node_command_open ON node_command (id) WHERE ended_at IS NULL;
CREATE INDEX node_command_of ON node_command (node_id, id);
CREATE INDEX node_command_ended ON node_command (ended_at) WHERE ended_at IS NOT NULL;

ALTER TABLE job ADD COLUMN dispatch TEXT;  -- JSON: why it was dispatched there; NULL: the dispatcher did not choose its lane
ALTER TABLE token ADD COLUMN node_id TEXT;  -- the only node that may use it; NULL: not a node token
