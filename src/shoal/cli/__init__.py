"""The command line. Each command translates its arguments into one call of another package, and is imported only when
called."""
