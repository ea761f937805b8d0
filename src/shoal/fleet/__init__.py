"""The fleet: nodes and their sessions with controllers, health, dispatch to private lanes, commands."""
