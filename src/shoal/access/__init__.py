"""Access control: tokens, token scopes, idempotency keys and the audit log. Independent of HTTP."""
