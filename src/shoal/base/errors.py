"""Every error that Shoal raises on purpose. Page failures are values, not exceptions, and are not defined here.

    ShoalError
    ├── CallerError               the caller must change something
    │   ├── InvalidInput          a field is invalid
    │   ├── UsageError            invalid command line
    │   ├── NotFound              the object does not exist
    │   ├── BodyNotKept           the content of a page is not available
    │   ├── AlreadyExists         the id is already in use
    │   ├── StateConflict         the object's state does not allow this
    │   ├── NotAllowed            the caller lacks permission
    │   ├── Unauthenticated       no valid credential
    │   ├── TooLarge              the request exceeds a size limit
    │   └── WrongMediaType        unsupported media type
    ├── LostError                 a race was lost: no action is needed
    │   └── LeaseLost             this process no longer holds the lease
    ├── TimeError                 temporary: try again later
    │   ├── BackendUnavailable    a store or service does not respond
    │   ├── WaitTimedOut          a wait exceeded its timeout
    │   ├── RateLimited           too many requests
    │   ├── TookTooLong           a request used up its time budget
    │   ├── NoWorker              no worker has taken the job that a caller waits for
    │   ├── HeldBack              too many jobs are waiting already
    │   └── Interrupted           stopped by a signal; can be resumed
    └── OperatorError             the operator of Shoal must act
        ├── BadConfig             a setting cannot be used
        ├── MissingExtra          optional packages are not installed
        ├── RedisMisconfigured    Redis is set up so that it cannot be used
        ├── FrontierLost          Redis has lost the frontier of a crawl
        ├── NodeDisplaced         another worker has taken over the node id
        ├── SchemaMismatch        the store has a different schema version
        ├── StorageFull           no space left to write
        ├── BodiesUnavailable     the body store fails persistently
        └── NothingCrawled        no seed yielded a page

The constructor of a class takes values and builds the message from them (*object + problem + fix*). Each class has a
stable `code`. `RESPONSES` at the end of this module maps each class to its HTTP status, exit code and gRPC status; a
test checks that no class is missing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct


class ShoalError(Exception):
    """Base class of every error that Shoal raises on purpose."""

    code = "error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    @classmethod
    def again(cls, message: str, facts: dict[str, Any]) -> "ShoalError":
        """Create an error with this message, instead of a message built from values."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.message, error.facts = message, facts
        return error

    @property
    def response(self) -> "ErrorResponse":
        return RESPONSES[type(self)]

    def problem(self) -> dict[str, Any]:
        """Return the RFC 9457 problem document."""
        facts = {name: value for name, value in self.facts.items() if value is not None}
        return {
            "type": f"https://shoal.invalid/errors/{self.code}",
            "title": self.code.replace("_", " "),
            "status": self.response.http_status,
            "code": self.code,
            "detail": self.message,
            **facts,
        }


class CallerError(ShoalError):
    """The caller must change something."""


class InvalidInput(CallerError):
    """A field is invalid; nothing was stored."""

    code = "invalid_input"

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field} {problem}; {fix}{'' if fix.endswith('?') else '.'}", field=field)

    def called(self, name: Callable[[str], str]) -> ShoalError:
        """Return this error with the caller's name for the field, unless the name was already replaced."""
        field = str(self.facts.get("field", ""))
        if not field or not self.message.startswith(field):
            return self
        return self.again(name(field) + self.message.removeprefix(field), self.facts)


class UsageError(CallerError):
    """Invalid command line."""

    code = "usage"

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}.")


class NotFound(CallerError):
    """The object does not exist."""

    code = "not_found"

    def __init__(self, kind: str, key: str, fix: str | None = None) -> None:
        super().__init__(f'{kind} "{key}" does not exist{"; " + fix if fix else ""}.', kind=kind, id=key)

    def within(self, place: str, fix: str) -> "NotFound":
        """Return this error with the place that was searched, for callers that are allowed to know the place."""
        found = NotFound(self.facts["kind"], self.facts["id"])
        found.message = f"{found.message[:-1]} in {place}; {fix}."
        return found


class BodyNotKept(CallerError):
    """The content of a page is not available: the page had no content, or the content was not stored."""

    code = "body_not_kept"

    def __init__(self, url: str, why: str, fix: str) -> None:
        super().__init__(f"{url} has no content here, because {why}; {fix}.", url=url)


class AlreadyExists(CallerError):
    """The id is already in use."""

    code = "already_exists"

    def __init__(self, kind: str, key: str, fix: str) -> None:
        super().__init__(f'{kind} "{key}" already exists; {fix}.', kind=kind, id=key)


class StateConflict(CallerError):
    """The object's state does not allow this; nothing was changed."""

    code = "state_conflict"

    def __init__(self, kind: str, key: str, state: str, action: str, fix: str | None = None) -> None:
        tail = f"; {fix}" if fix else ""
        super().__init__(f'{kind} "{key}" is {state}, so it cannot {action}{tail}.', kind=kind, id=key, state=state)


class NotAllowed(CallerError):
    """The caller lacks permission."""

    code = "not_allowed"

    def __init__(self, what: str, fix: str, **facts: Any) -> None:
        super().__init__(f"{what}; {fix}.", **facts)


class Unauthenticated(CallerError):
    """No valid credential."""

    code = "unauthenticated"

    def __init__(self, fix: str = "send a valid token as `Authorization: Bearer shl_…`") -> None:
        super().__init__(f"authentication is required; {fix}.")


class TooLarge(CallerError):
    """The request exceeds a size limit."""

    code = "too_large"

    def __init__(self, what: str, limit: str, fix: str) -> None:
        super().__init__(f"{what} is larger than {limit}; {fix}.")


class WrongMediaType(CallerError):
    """Unsupported media type."""

    code = "wrong_media_type"

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"the body is {found}; send it as {wanted}.")


class LostError(ShoalError):
    """A race was lost: no action is needed."""


class LeaseLost(LostError):
    """The lease expired, or the job was ended; in both cases, the epoch was incremented."""

    code = "lease_lost"

    def __init__(self, job_id: str, epoch: int) -> None:
        super().__init__(
            f'job "{job_id}" is no longer leased with epoch {epoch}; discard this work.',
            job_id=job_id,
            epoch=epoch,
        )


class TimeError(ShoalError):
    """A temporary error: try again later."""


class BackendUnavailable(TimeError):
    """A store or service does not respond."""

    code = "backend_unavailable"

    def __init__(self, backend: str, why: str, fix: str) -> None:
        super().__init__(f"{backend} is not available ({why}); {fix}.", backend=backend)


class WaitTimedOut(TimeError):
    """A wait exceeded its timeout."""

    code = "wait_timed_out"

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} within {seconds:.3g} s; wait longer, or check its state.")


class RateLimited(TimeError):
    """Too many requests."""

    code = "rate_limited"

    def __init__(self, what: str, retry_after_seconds: float) -> None:
        super().__init__(f"{what}; try again in {retry_after_seconds:g} s.", retry_after_seconds=retry_after_seconds)


class TookTooLong(TimeError):
    """A request used up its time budget."""

    code = "took_too_long"

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} was stopped after {seconds:g} s; try again when the server is less busy.")


class NoWorker(TimeError):
    """No worker has taken the job that a caller waits for."""

    code = "no_worker"

    def __init__(self, url: str, command: str, *, needs_browser: bool) -> None:
        which, where = ("worker with a browser", " on a machine with Chromium") if needs_browser else ("worker", "")
        super().__init__(
            f"no {which} has taken {url}, so it is not fetched; start one with `{command}`{where}, or start the server "
            "with `--workers 1`."
        )


class HeldBack(TimeError):
    """Too many jobs are waiting already: back-pressure."""

    code = "back_pressure"

    def __init__(self, why: str, retry_after_seconds: float) -> None:
        super().__init__(
            f"no more jobs are accepted now, because {why}; try again in {retry_after_seconds:g} s.",
            retry_after_seconds=retry_after_seconds,
        )


class Interrupted(TimeError):
    """The work was stopped by a signal, or paused by a user. It can be resumed."""

    code = "interrupted"

    def __init__(self, what: str, fix: str, how: str = "was interrupted") -> None:
        super().__init__(f"{what} {how}; {fix}.")


class OperatorError(ShoalError):
    """The operator of Shoal must act."""


class BadConfig(OperatorError):
    """A setting cannot be used."""

    code = "bad_config"
    _words: tuple[str, str] | None = None

    def __init__(self, key: str, problem: str, fix: str) -> None:
        super().__init__(f"{key} {problem}; {fix}.", key=key)
        self._words = (problem, fix)

    def called(self, key: str) -> "BadConfig":
        """Return this error with the name by which the setting was set, such as a flag."""
        return self if self._words is None else BadConfig(key, *self._words)


class MissingExtra(OperatorError):
    """Packages of an extra are not installed."""

    code = "missing_extra"

    def __init__(self, what: str, extra: str, command: str) -> None:
        super().__init__(f'{what} needs the extra "{extra}"; install it with `{command}`.', extra=extra)


class RedisMisconfigured(OperatorError):
    """Shoal cannot use Redis because of its eviction policy, password, permissions, cluster mode or version."""

    code = "redis_misconfigured"

    def __init__(self, server: str, problem: str, fix: str) -> None:
        super().__init__(f"{server} {problem}; {fix}.", server=server)


class FrontierLost(OperatorError):
    """Redis no longer has the frontier of a crawl, and the frontier could not be rebuilt."""

    code = "frontier_lost"
    why = ""
    generation: str | None = None  # generation of the lost frontier; another walker may have rebuilt the frontier since

    def __init__(self, crawl_id: str, why: str, generation: str | None = None) -> None:
        super().__init__(
            f'the frontier of crawl "{crawl_id}" is lost ({why}); retry the crawl to rebuild it from its pages, '
            "and turn on persistence in Redis.",
            crawl_id=crawl_id,
        )
        self.why, self.generation = why, generation


class NodeDisplaced(OperatorError):
    """Another worker has registered with the same node id. The worker that registered last keeps the id."""

    code = "node_displaced"

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f'another worker has registered as node "{node_id}"; give each worker a different GRPC_NODE_ID.',
            node_id=node_id,
        )


class SchemaMismatch(OperatorError):
    """The schema version of the store differs from that of this program."""

    code = "schema_mismatch"

    def __init__(self, store: str, found: int, wanted: int, fix: str) -> None:
        # Equal numbers: the tables were created before that version was final.
        needed = (
            f"which differs from the final version {wanted}"
            if found == wanted
            else f"but this version of Shoal needs {wanted}"
        )
        super().__init__(f"{store} has schema version {found}, {needed}; {fix}.", found=found, wanted=wanted)


class StorageFull(OperatorError):
    """No space left to write; committed data is safe."""

    code = "storage_full"
    storage = "store"  # the storage that is full: `bodies` is the body store, `output` is the output of a command

    def __init__(self, store: str, storage: str = "store") -> None:
        self.storage = storage
        super().__init__(f"{store} has no space left; free some space and try again. Committed data is safe.")


class BodiesUnavailable(OperatorError):
    """The body store fails persistently.

    Unlike an outage of the database, this failure ends the crawl: waiting would mean to fetch the same pages again and
    again."""

    code = "bodies_unavailable"

    def __init__(self, store: str, why: str, fix: str) -> None:
        super().__init__(f"the body store {store} is not available ({why}); {fix}.", store=store)


class NothingCrawled(OperatorError):
    """No seed yielded a page."""

    code = "nothing_crawled"

    def __init__(self, crawl_id: str | None, why: str) -> None:
        what = "the URL returned no page" if crawl_id is None else f'no seed of crawl "{crawl_id}" returned a page'
        # If the reason names a setting, the URL is not the cause.
        fix = "change the setting" if "SHOAL_" in why else "check the URL"
        super().__init__(f"{what} ({why}); {fix} and try again.")


class ErrorResponse(Struct, frozen=True):
    """The HTTP status, exit code and gRPC status that represent an error."""

    http_status: int
    exit_code: int
    grpc_status: str


RESPONSES: dict[type[ShoalError], ErrorResponse] = {
    InvalidInput: ErrorResponse(422, 2, "INVALID_ARGUMENT"),
    UsageError: ErrorResponse(400, 2, "INVALID_ARGUMENT"),
    NotFound: ErrorResponse(404, 5, "NOT_FOUND"),
    BodyNotKept: ErrorResponse(404, 5, "NOT_FOUND"),
    AlreadyExists: ErrorResponse(409, 7, "ALREADY_EXISTS"),
    StateConflict: ErrorResponse(409, 7, "FAILED_PRECONDITION"),
    NotAllowed: ErrorResponse(403, 7, "PERMISSION_DENIED"),
    Unauthenticated: ErrorResponse(401, 7, "UNAUTHENTICATED"),
    TooLarge: ErrorResponse(413, 2, "RESOURCE_EXHAUSTED"),
    WrongMediaType: ErrorResponse(415, 2, "INVALID_ARGUMENT"),
    LeaseLost: ErrorResponse(409, 1, "ABORTED"),
    BackendUnavailable: ErrorResponse(503, 8, "UNAVAILABLE"),
    WaitTimedOut: ErrorResponse(504, 6, "DEADLINE_EXCEEDED"),
    RateLimited: ErrorResponse(429, 8, "RESOURCE_EXHAUSTED"),
    TookTooLong: ErrorResponse(503, 8, "DEADLINE_EXCEEDED"),
    NoWorker: ErrorResponse(503, 8, "UNAVAILABLE"),
    HeldBack: ErrorResponse(429, 8, "RESOURCE_EXHAUSTED"),
    Interrupted: ErrorResponse(503, 11, "CANCELLED"),
    BadConfig: ErrorResponse(500, 4, "FAILED_PRECONDITION"),
    MissingExtra: ErrorResponse(501, 4, "UNIMPLEMENTED"),
    RedisMisconfigured: ErrorResponse(503, 4, "FAILED_PRECONDITION"),
    FrontierLost: ErrorResponse(500, 1, "DATA_LOSS"),
    NodeDisplaced: ErrorResponse(409, 4, "ABORTED"),
    SchemaMismatch: ErrorResponse(503, 4, "FAILED_PRECONDITION"),
    StorageFull: ErrorResponse(507, 8, "RESOURCE_EXHAUSTED"),
    BodiesUnavailable: ErrorResponse(503, 8, "UNAVAILABLE"),
    NothingCrawled: ErrorResponse(502, 3, "UNAVAILABLE"),
}

_BY_CODE = {kind.code: kind for kind in RESPONSES}
_BY_STATUS: dict[int, type[ShoalError]] = {401: Unauthenticated, 403: NotAllowed, 404: NotFound, 413: TooLarge}
_OF_PROBLEMS = frozenset({"type", "title", "status", "code", "detail"})


def from_problem(problem: Mapping[str, Any], status: int) -> ShoalError:
    """Return the error that a problem document describes, for HTTP clients; unknown codes are mapped by status."""
    kind = _BY_CODE.get(str(problem.get("code")))
    if kind is None:
        kind = _BY_STATUS.get(status, BackendUnavailable if status >= 500 else UsageError)
    facts = {name: value for name, value in problem.items() if name not in _OF_PROBLEMS}
    return kind.again(str(problem.get("detail") or f"The server answered {status}."), facts)
