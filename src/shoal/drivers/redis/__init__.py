"""Drivers on Redis or Valkey. The database is authoritative: lanes that are lost here are filled again from the jobs,
and frontiers are rebuilt from the stored pages, some of which are fetched again. A crawl fails (`frontier_lost`) only
if a different store has meanwhile begun a frontier under the same crawl id."""
