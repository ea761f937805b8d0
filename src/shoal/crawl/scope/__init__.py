"""The scope of a crawl: scope rules, seeds, sitemap guesses."""
