-- name: append_audit_entry
-- Append an entry to the audit log.
INSERT INTO audit_entry (at, who, act, subject, facts, address)
VALUES (shoal_now(), :who, :act, :subject, :facts, :address);

-- name: newest_audit_entries
-- Return audit log entries before a number, newest first.
SELECT * FROM audit_entry
WHERE number < coalesce(CAST(:before AS BIGINT), 9223372036854775807)
ORDER BY number DESC LIMIT :limit;

-- name: newest_audit_entries_on
-- Return audit log entries about one subject before a number, newest first.
SELECT * FROM audit_entry
WHERE subject = :subject AND number < coalesce(CAST(:before AS BIGINT), 9223372036854775807)
ORDER BY number DESC LIMIT :limit;
