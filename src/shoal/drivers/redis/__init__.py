"""Drivers on Redis or Valkey. The database is the record: lanes that are lost here are filled again from the jobs, and
frontiers from the pages, some of which are fetched again. A crawl fails (`frontier_lost`) only if another store has
meanwhile begun a frontier under its id."""
