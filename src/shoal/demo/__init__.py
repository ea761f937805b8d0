"""The small site that `shoal demo` crawls: made up, the same on every machine, and served on loopback."""
