"""Hosts: rate limits and robots.txt, one durable row per host, shared by all processes.

Also the addresses of our own controllers, which are hosts that no crawl may request (SSRF protection)."""
