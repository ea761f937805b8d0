"""The URLs of one crawl: values, fates, traps, and the interfaces of the stores that keep them."""
