"""The small site that `shoal demo` crawls: fictional, the same on every machine, and served on loopback."""
