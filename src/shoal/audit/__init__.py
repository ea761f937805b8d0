"""Audits: what an analysis of a crawl is, the analyzers, and what they find. Knows nothing of how pages are fetched."""
