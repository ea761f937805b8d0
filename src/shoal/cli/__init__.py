"""The command line. Commands translate their arguments into calls of the REST API or of other packages. Each command
or group is imported only when it is called."""
