"""The built-in analyzers, one module each."""
