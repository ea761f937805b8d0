"""Policies: what to crawl repeatedly, when, and at which priority. This package creates jobs but does not run them."""
