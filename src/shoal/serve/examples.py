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
