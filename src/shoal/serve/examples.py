"""Example responses for the OpenAPI document and the reference."""

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
    "responses": {"2xx": 112, "3xx": 0, "4xx": 7, "5xx": 1, "none": 2},
    "queued": 380,
    "skipped": {"robots": 4},
    "bytes": 2460000,
    "not_modified": 0,
    "bytes_saved": 0,
    "depth_reached": 2,
    "worked_seconds": 61.2,
    "config": {"depth": 2, "max_pages": 500, "speed": "normal"},
    "node_ids": ["crawler-1"],
    "error": None,
}
NEW_CRAWL = CRAWL | {
    "state": "queued",
    "started_at": None,
    "pages": 0,
    "errors": 0,
    "responses": {"2xx": 0, "3xx": 0, "4xx": 0, "5xx": 0, "none": 0},
    "queued": 1,
    "skipped": {},
    "bytes": 0,
    "depth_reached": 0,
    "worked_seconds": 0.0,
    "node_ids": [],
}
HELD_HOST = {"origin": "https://example.com", "held_until": "2026-03-01T09:05:00Z", "status": 429}
POLITENESS: dict[str, Any] = {
    "crawl_id": CRAWL["id"],
    "obeys_robots": True,
    "user_agent": "Shoal/0.1",
    "connections_per_host": 2,
    "delay_seconds": 1.0,
    "hosts": [
        {
            "origin": "https://example.com",
            "pages": 1200,
            "requests_per_second": 0.5,
            "delay_seconds": 2.0,
            "robots": "found",
            "robots_hash": "9f86d081884c7d65",
            "robots_fetched_at": "2026-03-01T09:00:00Z",
            "crawl_delay_asked": 2.0,
            "crawl_delay_honoured": 2.0,
            "crawl_delay_clamped": False,
            "holds": {"429": 1},
            "hold_seconds": 30.0,
            "held_until": None,
        }
    ],
    "more_hosts": False,
}
TRAP = {
    "pattern": "https://example.com/calendar?month=&year=",
    "state": "quarantined",
    "sample": "https://example.com/calendar?month=7&year=2093",
    "count": 240,
}
JOURNAL_ENTRY = {
    "timestamp": "2026-03-01T09:00:07Z",
    "level": "info",
    "event": "depth_finished",
    "msg": "Depth 1 finished",
    "crawl_id": CRAWL["id"],
    "number": 12,
}
PAGE = {
    "crawl_id": CRAWL["id"],
    "url": "https://example.com/about",
    "final_url": "https://example.com/about",
    "status": 200,
    "depth": 1,
    "parent": "https://example.com/",
    "content_type": "text/html; charset=utf-8",
    "encoding": "utf-8",
    "bytes": 5120,
    "title": "About us",
    "description": None,
    "canonical": None,
    "robots": None,
    "lang": "en",
    "h1": "About us",
    "word_count": 310,
    "content_hash": "8f3a1c0b7d2e49566f0a1b2c3d4e5f60",
    "links_internal": 14,
    "links_external": 2,
    "redirects": [],
    "fetched_at": "2026-03-01T09:00:04Z",
    "duration_ms": 84.2,
    "attempt": 1,
    "rendered": False,
    "error": None,
    "data": None,
}
ANALYSIS: dict[str, Any] = {
    "id": "anl_01hr2v8k3m4n5p6q",
    "crawl_id": "crl_01hr2v8k3m4n5p6q",
    "project": "default",
    "state": "success",
    "state_reason": None,
    "error": None,
    "findings": 9,
    "site": "https://example.com/",
    "gate": "release",
    "baseline": None,
    "commit": None,
    "verdict": {
        "outcome": "failed",
        "reasons": ["broken_links is 3; the gate demands <= 0."],
        "rules": [
            {
                "condition": "broken_links <= 0",
                "metric": "broken_links",
                "severity": "error",
                "outcome": "failed",
                "value": 3.0,
                "baseline": None,
                "reason": "broken_links is 3; the gate demands <= 0.",
            }
        ],
    },
    "created_at": "2026-03-01T09:10:00Z",
    "started_at": "2026-03-01T09:10:01Z",
    "finished_at": "2026-03-01T09:10:03Z",
}
ANALYSIS_DETAIL: dict[str, Any] = ANALYSIS | {
    "metrics": {"pages": 120.0, "broken_links": 3.0},
    "codes": [
        {
            "code": "broken_link",
            "severity": "error",
            "analyzer": "links",
            "title": "Pages link to a URL that answers with a 4xx status.",
            "fix": "Correct or remove the links, or restore the page.",
            "count": 3,
            "stored": 3,
        }
    ],
    "analyzers": [
        {
            "analyzer": "links",
            "error": None,
            "findings": 3,
            "duration_ms": 1.4,
            "artifacts": [],
            "skipped": None,
            "optional": False,
        }
    ],
    "summary": {"depth": [{"depth": 0, "2xx": 1}]},
    "commit_status": None,
}
FINDING: dict[str, Any] = {
    "analyzer": "links",
    "code": "broken_link",
    "severity": "error",
    "page": "https://example.com/gone",
    "key": "8d3f0c5a9b1e2f47",
    "evidence": {"status": 404, "links": 2, "linked_from": ["https://example.com/", "https://example.com/about"]},
}
GATE: dict[str, Any] = {
    "name": "release",
    "rules": [{"metric": "broken_links", "op": "<=", "threshold": 0.0, "max_increase": None, "severity": "error"}],
    "ignore": ["title_too_long"],
    "fail": ["redirect_loop"],
    "min_pages": 1,
    "min_pages_percent": 50.0,
    "created_at": "2026-03-01T09:00:00Z",
    "changed_at": "2026-03-01T09:00:00Z",
}
URL_EXPLAINED: dict[str, Any] = {
    "crawl_id": CRAWL["id"],
    "url": "https://example.com/calendar/2031",
    "state": "skipped",
    "reason": "excluded",
    "explanation": "It matches the exclude pattern `/calendar/`.",
}
