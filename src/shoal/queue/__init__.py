"""Jobs, the units that workers lease: states, leases, retries and the janitor. The kind of a job determines its
work."""
