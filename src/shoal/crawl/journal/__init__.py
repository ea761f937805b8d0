"""The journal of a crawl: entries that people read, and the files they are copied to."""
