"""Turns a URL into a page: by a single fetch, with redirects, headers and cookies, or by rendering in a browser."""
