"""The command line: a command translates words into one call of a room, and is imported when it is called."""
