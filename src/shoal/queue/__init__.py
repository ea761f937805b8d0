"""Jobs, the units that workers lease: states, leases, retries and the janitor. What a job does is left to its kind."""
