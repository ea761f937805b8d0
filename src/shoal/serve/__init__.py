"""HTTP: the REST API, the bot API, the console, health checks, metrics, and the render service. This package
authenticates requests, translates them, and calls the packages that contain the logic."""
