"""Crawls in this very process, for the command line and the library: what was asked for, the walk, its pages."""
