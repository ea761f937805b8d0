"""What Shoal costs, measured: each benchmark prints a table, and none of them ever fails because of a time."""
