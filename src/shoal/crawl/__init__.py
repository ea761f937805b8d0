"""A site crawl: its life, its frontier, what belongs to it, and the engine that walks it."""
