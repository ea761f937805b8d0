"""HTTP: the REST API and the console. Translates and calls rooms, nothing else."""
