"""The built-in analyzers, each in its own module (`registry` lists them), and the loading of others (`plugins`)."""
