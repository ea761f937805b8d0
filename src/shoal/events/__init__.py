"""Events: kept in the outbox until every webhook and the event file have them."""
