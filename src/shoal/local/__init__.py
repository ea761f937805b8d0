"""Crawls in this process, for the command line and the library: the request, the crawl, its pages."""
