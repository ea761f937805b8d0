"""The foundation of every package: clock, ids, errors, chore loop, signals, contracts. Imports no other package."""
