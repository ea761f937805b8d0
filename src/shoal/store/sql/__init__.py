"""The stores on SQL: one database contract on SQLite and PostgreSQL, with named queries and numbered migrations."""
