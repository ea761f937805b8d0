"""The stores on SQL: SQLite and PostgreSQL behind one small port, named queries, numbered migrations."""
