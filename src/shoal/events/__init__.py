"""Events: kept in the outbox for webhooks, the event file and the run recorder of policies; see `retention`."""
