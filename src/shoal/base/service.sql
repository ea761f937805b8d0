-- name: claim_lead
-- Renew the lead of a chore, or take it over when it has expired. Only a renewal in time keeps the term.
INSERT INTO leader (chore, holder, term, until) VALUES (:chore, :holder, 1, shoal_now() + :ttl)
ON CONFLICT (chore) DO UPDATE
SET term = CASE WHEN leader.holder = excluded.holder AND leader.until >= shoal_now() THEN leader.term ELSE leader.term + 1 END,
    holder = excluded.holder, until = excluded.until
WHERE leader.holder = excluded.holder OR leader.until < shoal_now()
RETURNING term;

-- name: give_up_lead
-- End the lead, so that another process can take over immediately.
UPDATE leader SET until = 0 WHERE chore = :chore AND holder = :holder AND term = :term;
