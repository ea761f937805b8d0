"""Hosts: pace and robots, one durable row per host, shared by everybody who asks it."""
