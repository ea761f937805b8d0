-- What each bot did in an hour, beside the jobs it received: results that were accepted, those of them that report a
-- failure or lack required data, results and heartbeats that came without a valid lease, and leases that expired.
-- seen_at is 0 in an hour in which the bot sent nothing.
ALTER TABLE bot_hour ADD COLUMN results INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN invalid_data INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN late_results INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN heartbeats INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN late_heartbeats INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN lost_leases INTEGER NOT NULL DEFAULT 0;
