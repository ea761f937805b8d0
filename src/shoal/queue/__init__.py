"""Jobs: what a machine leases. States, leases, retries, the janitor. Knows nothing of what a job does."""
