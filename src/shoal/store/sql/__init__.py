"""The stores on SQL: SQLite and PostgreSQL behind one small port, with named queries and numbered migrations."""
