"""Dump a crawl with its frontier and pages as JSON lines, to move it between stores."""
