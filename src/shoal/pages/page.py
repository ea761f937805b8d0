"""The page record: what Shoal keeps and tells of one fetched URL."""

from dataclasses import dataclass, field
from typing import Any

from shoal.base.clock import from_micros

RECORD_FIELDS = (
    "crawl_id", "url", "final_url", "status", "depth", "parent", "content_type", "encoding", "bytes", "title",
    "description", "canonical", "robots", "lang", "h1", "word_count", "content_hash", "links_internal",
    "links_external", "redirects", "fetched_at", "duration_ms", "attempt", "rendered", "error", "data",
)  # fmt: skip


@dataclass(slots=True)
class Page:
    """One fetched URL. `error` is a code and a message; a page with a status was answered by its server."""

    url: str
    depth: int
    fetched_at: int
    attempt: int
    final_url: str | None = None
    status: int | None = None
    parent: str | None = None
    content_type: str | None = None
    encoding: str | None = None
    bytes: int = 0
    title: str | None = None
    description: str | None = None
    canonical: str | None = None
    robots: str | None = None
    lang: str | None = None
    h1: str | None = None
    word_count: int | None = None
    content_hash: str | None = None
    links_internal: int | None = None
    links_external: int | None = None
    redirects: list[dict[str, Any]] = field(default_factory=list)
    duration_ms: float | None = None
    rendered: bool = False
    error_code: str | None = None
    error_message: str | None = None
    data: dict[str, Any] | None = None

    def record(self, crawl_id: str) -> dict[str, Any]:
        """The public record: one JSON object a line, the same columns everywhere."""
        values = {name: getattr(self, name, None) for name in RECORD_FIELDS}
        values["crawl_id"] = crawl_id
        values["fetched_at"] = from_micros(self.fetched_at)
        values["error"] = None if self.error_code is None else {"code": self.error_code, "message": self.error_message}
        return values
