"""The journal of a crawl: entries for people, and the files they are copied to."""
