"""Shoal, a self-hosted crawl platform. Only the version lives here, so that importing it costs nothing."""

__version__ = "0.1.0"
