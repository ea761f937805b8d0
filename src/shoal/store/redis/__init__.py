"""Drivers on Redis or Valkey. The database is the record: everything that is lost here can be rebuilt from it."""
