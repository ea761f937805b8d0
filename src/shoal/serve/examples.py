"""Examples of answers, for the OpenAPI document and the reference."""

from typing import Any

CRAWL: dict[str, Any] = {
    "id": "crl_01hr2v8k3m4n5p6q",
    "state": "running",
    "state_reason": None,
    "seeds": ["https://example.com/"],
    "project": "default",
    "labels": {"team": "search"},
    "priority": 50,
    "created_at": "2026-03-01T09:00:00Z",
    "started_at": "2026-03-01T09:00:01Z",
    "finished_at": None,
    "pages": 120,
    "errors": 2,
    "queued": 380,
    "skipped": {"robots": 4},
    "bytes": 2460000,
    "not_modified": 0,
    "bytes_saved": 0,
    "depth_reached": 2,
    "config": {"depth": 2, "max_pages": 500, "speed": "normal"},
    "node_ids": ["crawler-1"],
    "error": None,
}
NEW_CRAWL = CRAWL | {
    "state": "queued",
    "started_at": None,
    "pages": 0,
    "errors": 0,
    "queued": 1,
    "skipped": {},
    "bytes": 0,
    "depth_reached": 0,
    "node_ids": [],
}
HELD_HOST = {"origin": "https://example.com", "held_until": "2026-03-01T09:05:00Z", "status": 429}
TOKEN: dict[str, Any] = {
    "id": "tok_7h3k9m2pxw",
    "name": "nightly crawls",
    "state": "valid",
    "scopes": ["write"],
    "made_by": "local",
    "created_at": "2026-03-01T09:00:00Z",
    "expires_at": "2026-05-30T09:00:00Z",
    "last_used_at": None,
    "revoked_at": None,
}
ACT: dict[str, Any] = {
    "number": 12,
    "at": "2026-03-01T09:00:00Z",
    "who": "local",
    "act": "token.created",
    "subject": "tok_7h3k9m2pxw",
    "facts": {"name": "nightly crawls", "scopes": ["write"], "expires_in": "90d"},
    "address": "127.0.0.1",
}
