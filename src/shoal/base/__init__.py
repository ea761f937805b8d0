"""Ground that every room stands on: clock, ids, errors, service shell, signals, ports. Knows nobody."""
