"""Who may do what: tokens, scopes, the log of administrative acts. Knows nothing of HTTP."""
