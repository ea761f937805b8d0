"""The worker process: leases jobs, runs each in a child, keeps the leases alive, and stops in good order."""
