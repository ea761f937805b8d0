"""The result of a page job from any worker or bot: a value that can be compared, stored and published."""

from enum import StrEnum
from typing import Any, Final

import orjson
import xxhash
from msgspec import Struct

from shoal.base.clock import moment
from shoal.base.ids import JobId
from shoal.base.text import json_of
from shoal.queue.job import Fence
from shoal.queue.states import JobState

INVALID_DATA: Final = "invalid_data"
LONGEST_MESSAGE: Final = 2000


class Status(StrEnum):
    SUCCESS = "success"
    FAIL = "fail"


class Result(Struct, frozen=True):
    """The outcome of one page job. `data`: the data that the rule set extracted, or that a bot sent."""

    status: Status
    url: str
    fetched_at: int
    final_url: str | None = None
    http_status: int | None = None
    data: Any = None
    duration_seconds: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    html_hash: str | None = None
    retryable: bool = True  # whether a retry may succeed
    retry_after_seconds: float = 0.0  # minimum delay before a retry

    @property
    def error(self) -> dict[str, str | None] | None:
        return None if self.error_code is None else {"code": self.error_code, "message": self.error_message}

    def digest(self) -> str:
        """A hash that detects duplicate deliveries. The hash omits the fetch time, which the receiver sets."""
        content = [
            self.status,
            self.url,
            self.final_url,
            self.http_status,
            self.data,
            self.duration_seconds,
            self.error_code,
            self.error_message,
            self.html_hash,
        ]
        return xxhash.xxh3_128_hexdigest(json_of(content, orjson.OPT_SORT_KEYS))

    def event_data(self) -> dict[str, Any]:
        """Return the result in the form that events and the API use."""
        return {
            "status": self.status.value,
            "url": self.url,
            "final_url": self.final_url,
            "http_status": self.http_status,
            "data": self.data,
            "meta": {"crawl_duration": self.duration_seconds, "error": self.error, "html_hash": self.html_hash},
            "fetched_at": moment(self.fetched_at),
        }


class ResultDelivery(Struct, frozen=True):
    """A result and its grant. `size`: the size of its data in bytes, if the data may be large. `digest`: the digest of
    the result that the sender has sent, if a different result is stored in its place."""

    fence: Fence
    result: Result
    size: int = 0
    digest: str = ""


class Receipt(Struct, frozen=True):
    """The outcome of a delivery: the new state of its job, or None if the sender no longer held the lease."""

    fence: Fence
    state: JobState | None

    @property
    def is_lost(self) -> bool:
        return self.state is None


class StoredResult(Struct, frozen=True):
    """A stored result. `state`: the job state to which the result led."""

    number: int
    job_id: JobId
    epoch: int
    group_id: str | None
    policy: str | None
    state: JobState
    result: Result
