"""Log lines, metrics and hourly statistics from the signals of other packages, the log files of projects, and the size
of the store."""
