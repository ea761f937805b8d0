"""The worker process: leases, children, heartbeats, control while it runs, shutdown."""
