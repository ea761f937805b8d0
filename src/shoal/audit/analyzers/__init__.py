"""The built-in analyzers, and a registry that lists them and loads other analyzers."""
