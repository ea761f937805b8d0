"""The lifecycle of a crawl: submit, pause, resume, stop, change, retry."""
