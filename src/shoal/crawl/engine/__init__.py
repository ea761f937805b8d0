"""One walker at work: the fetch window, the robots.txt check, page reading, commits."""
