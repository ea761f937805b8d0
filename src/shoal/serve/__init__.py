"""HTTP: the REST API and the console. Translates requests and calls the packages, nothing else."""
