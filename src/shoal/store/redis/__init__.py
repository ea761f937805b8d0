"""Drivers on Redis or Valkey. SQL decides, Redis carries: whatever is lost here can be made again from the database."""
