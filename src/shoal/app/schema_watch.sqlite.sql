-- name: schema_version
-- Return the version of the schema.
SELECT user_version FROM pragma_user_version;
