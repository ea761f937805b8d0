"""Hosts: rate limits and robots.txt, one durable row per host, shared by all processes.

This package also stores the addresses of our own controllers, because no crawl may request them (SSRF protection)."""
