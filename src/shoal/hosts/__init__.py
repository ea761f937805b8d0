"""Hosts: pace and back-off, one durable row per host, shared by everybody who asks it."""
