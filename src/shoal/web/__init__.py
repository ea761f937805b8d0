"""From a URL to a page: one fetch, with its redirects, headers and cookies, or a rendering in a browser."""
