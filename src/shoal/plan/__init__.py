"""Policies: what to crawl repeatedly, when, and at which priority. Creates jobs; does not run them."""
