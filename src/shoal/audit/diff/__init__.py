"""Differences between two crawls that have ended: pages added, removed and changed, findings new, fixed and still open.

For the API, the command line and CI: complete, by field, whatever the size of the crawls. The console shows a quicker
comparison of outlines, also of running crawls (`pages.comparison`)."""
