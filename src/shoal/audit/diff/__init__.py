"""Differences between two crawls: pages added, removed and changed, findings new, fixed and still open."""
