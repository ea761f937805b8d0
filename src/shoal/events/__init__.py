"""Events: stored in the outbox for webhooks and the event file (see `forwarder.EventRetention`)."""
