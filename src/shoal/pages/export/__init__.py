"""Export pages to files that other tools can read."""
