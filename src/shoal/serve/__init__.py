"""HTTP: the REST API, the bot API, the console, health checks, metrics, and the render service. Authenticates requests,
translates them and calls the packages, which decide."""
