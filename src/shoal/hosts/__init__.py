"""Hosts: rate limits and robots.txt, one durable row per host, shared by all processes."""
