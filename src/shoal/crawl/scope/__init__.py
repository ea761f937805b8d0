"""Which URLs belong to a crawl: scope rules, seeds, sitemap guesses."""
