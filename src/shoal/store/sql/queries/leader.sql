-- name: claim_lead
-- Who leads a chore goes on; who does not takes over when the time of the other is up. A new term whenever there was a gap.
INSERT INTO leader (chore, holder, term, until) VALUES (:chore, :holder, 1, shoal_now() + :ttl)
ON CONFLICT (chore) DO UPDATE
SET term = CASE WHEN leader.holder = excluded.holder AND leader.until >= shoal_now() THEN leader.term ELSE leader.term + 1 END,
    holder = excluded.holder, until = excluded.until
WHERE leader.holder = excluded.holder OR leader.until < shoal_now()
RETURNING term;

-- name: lead_holds
-- Whether a term is still the one.
SELECT 1 FROM leader WHERE chore = :chore AND holder = :holder AND term = :term AND until >= shoal_now();

-- name: give_up_lead
-- Whoever leads lets the next one take over at once.
UPDATE leader SET until = 0 WHERE chore = :chore AND holder = :holder AND term = :term;
