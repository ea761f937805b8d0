"""Events: kept in the outbox for webhooks and the event file; see `retention`."""
