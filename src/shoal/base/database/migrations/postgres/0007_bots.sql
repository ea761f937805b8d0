-- What each bot did in an hour, beside the jobs it received: results that were accepted, those of them that report a
-- failure or lack required data, results and heartbeats that came without a valid lease, and leases that expired.
-- seen_at is 0 in an hour in which the bot sent nothing.
ALTER TABLE bot_hour ADD COLUMN results BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN failures BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN invalid_data BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN late_results BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN heartbeats BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN late_heartbeats BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bot_hour ADD COLUMN lost_leases BIGINT NOT NULL DEFAULT 0;
