"""Audits: analyses of crawls, the analyzers, and their findings. Independent of how pages are fetched."""
