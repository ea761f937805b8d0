"""The URLs of one crawl: values, fates, traps, and the contracts of their store."""
