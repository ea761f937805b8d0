"""Log lines, metrics and hourly statistics, made from the signals that other packages emit. This package also has the
log files of projects and the size of the store."""
