"""Events: what happened, kept in the outbox until whoever wants to know has it."""
