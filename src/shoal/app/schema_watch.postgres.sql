-- name: schema_version
-- Return the version of the schema.
SELECT max(version) FROM schema_version;
