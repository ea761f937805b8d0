"""Every error that Shoal raises on purpose. Page failures are values, not exceptions, and are not here.

    ShoalError
    ├── CallerError               the caller must change something
    │   ├── InvalidInput          a field cannot be taken as it is
    │   ├── UsageError            the command's words are off
    │   ├── NotFound              no such thing
    │   ├── AlreadyExists         the id is taken
    │   ├── StateConflict         the thing is in a state that does not allow this
    │   ├── NotAllowed            this caller may not
    │   ├── Unauthenticated       no valid credential
    │   ├── TooLarge              more than is taken at once
    │   └── WrongMediaType        the body is of a kind that is not read
    ├── LostError                 nobody must act: somebody else was first
    │   └── LeaseLost             the job is no longer ours
    ├── TimeError                 time helps: try again
    │   ├── BackendUnavailable    a store or service does not answer
    │   ├── WaitTimedOut          it did not happen in the time given
    │   ├── RateLimited           too many, too fast
    │   └── Interrupted           stopped by a signal; can be resumed
    └── OperatorError             whoever runs Shoal must act
        ├── BadConfig             a setting cannot be used
        ├── SchemaMismatch        the store has another version
        ├── StorageFull           no room to write
        ├── BodiesUnavailable     the store of kept bodies does not do what it is asked
        └── NothingCrawled        no seed gave a page

A class takes facts, words its own message (*thing + what is so + what to do*) and has a stable `code`. `RESPONSES` at
the end maps each to its HTTP status, exit code and gRPC status; a test holds that none is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


class ShoalError(Exception):
    """Base of everything raised on purpose."""

    code = "error"

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    @classmethod
    def again(cls, message: str, facts: dict[str, Any]) -> "ShoalError":
        """An error that somebody else worded."""
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.message, error.facts = message, facts
        return error

    @property
    def response(self) -> "ErrorResponse":
        return RESPONSES[type(self)]

    def problem(self) -> dict[str, Any]:
        """The RFC 9457 problem document."""
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
    """A field cannot be taken as it is; nothing was stored."""

    code = "invalid_input"

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field} {problem}; {fix}.", field=field)

    def called(self, name: Callable[[str], str]) -> ShoalError:
        """The same, with the field by the name that whoever wrote it knows."""
        field = str(self.facts.get("field", ""))
        return self.again(name(field) + self.message.removeprefix(field), self.facts) if field else self


class UsageError(CallerError):
    """The command's words are off."""

    code = "usage"

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}.")


class NotFound(CallerError):
    """No such thing."""

    code = "not_found"

    def __init__(self, kind: str, key: str, fix: str | None = None) -> None:
        super().__init__(f'{kind} "{key}" does not exist{"; " + fix if fix else ""}.', kind=kind, id=key)

    def within(self, place: str, fix: str) -> "NotFound":
        """The same for somebody who may know where it was looked for."""
        found = NotFound(self.facts["kind"], self.facts["id"])
        found.message = f"{found.message[:-1]} in {place}; {fix}."
        return found


class AlreadyExists(CallerError):
    """The id is taken."""

    code = "already_exists"

    def __init__(self, kind: str, key: str, fix: str) -> None:
        super().__init__(f'{kind} "{key}" exists already; {fix}.', kind=kind, id=key)


class StateConflict(CallerError):
    """The thing is in a state that does not allow this; nothing was changed."""

    code = "state_conflict"

    def __init__(self, kind: str, key: str, state: str, wish: str, fix: str | None = None) -> None:
        tail = f"; {fix}" if fix else ""
        super().__init__(f'{kind} "{key}" is {state}, so it cannot {wish}{tail}.', kind=kind, id=key, state=state)


class NotAllowed(CallerError):
    """This caller may not."""

    code = "not_allowed"

    def __init__(self, what: str, fix: str, **facts: Any) -> None:
        super().__init__(f"{what}; {fix}.", **facts)


class Unauthenticated(CallerError):
    """No valid credential."""

    code = "unauthenticated"

    def __init__(self, fix: str = "send a valid token as `Authorization: Bearer shl_…`") -> None:
        super().__init__(f"This needs a credential; {fix}.")


class TooLarge(CallerError):
    """More than is taken at once."""

    code = "too_large"

    def __init__(self, what: str, limit: str, fix: str) -> None:
        super().__init__(f"{what} is larger than {limit}; {fix}.")


class WrongMediaType(CallerError):
    """The body is of a kind that is not read."""

    code = "wrong_media_type"

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"the body is {found}; send it as {wanted}.")


class LostError(ShoalError):
    """Nobody must act: somebody else was first."""


class LeaseLost(LostError):
    """The job is no longer ours: its lease ran out, or it was ended, and its epoch moved on."""

    code = "lease_lost"

    def __init__(self, job_id: str, epoch: int) -> None:
        super().__init__(
            f'job "{job_id}" is no longer leased with epoch {epoch}; drop this work, somebody else has it.',
            job_id=job_id,
            epoch=epoch,
        )


class TimeError(ShoalError):
    """Time helps: try again."""


class BackendUnavailable(TimeError):
    """A store or service does not answer."""

    code = "backend_unavailable"

    def __init__(self, backend: str, why: str, fix: str) -> None:
        super().__init__(f"{backend} is not available ({why}); {fix}.", backend=backend)


class WaitTimedOut(TimeError):
    """It did not happen in the time given."""

    code = "wait_timed_out"

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} did not happen within {seconds:g} s; wait longer or look at its state.")


class RateLimited(TimeError):
    """Too many, too fast."""

    code = "rate_limited"

    def __init__(self, what: str, retry_after_seconds: float) -> None:
        super().__init__(f"{what}; try again in {retry_after_seconds:g} s.", retry_after_seconds=retry_after_seconds)


class Interrupted(TimeError):
    """Stopped by a signal, or paused by somebody; can be resumed."""

    code = "interrupted"

    def __init__(self, what: str, fix: str, how: str = "was interrupted") -> None:
        super().__init__(f"{what} {how}; {fix}.")


class OperatorError(ShoalError):
    """Whoever runs Shoal must act."""


class BadConfig(OperatorError):
    """A setting cannot be used."""

    code = "bad_config"
    _words: tuple[str, str] | None = None

    def __init__(self, key: str, problem: str, fix: str) -> None:
        super().__init__(f"{key} {problem}; {fix}.", key=key)
        self._words = (problem, fix)

    def called(self, key: str) -> "BadConfig":
        """The same by another name: the one that whoever set it knows."""
        return self if self._words is None else BadConfig(key, *self._words)


class SchemaMismatch(OperatorError):
    """The store has another version than this program."""

    code = "schema_mismatch"

    def __init__(self, store: str, found: int, wanted: int, fix: str) -> None:
        # The same number: its tables were made before that version was final.
        needed = f"which is not the {wanted} of this Shoal" if found == wanted else f"this Shoal needs {wanted}"
        super().__init__(f"{store} has schema version {found}, {needed}; {fix}.", found=found, wanted=wanted)


class StorageFull(OperatorError):
    """No room to write; what was committed before is safe."""

    code = "storage_full"
    storage = "store"  # which of ours it is: `bodies` for kept bodies, `output` for an output of a command

    def __init__(self, store: str, storage: str = "store") -> None:
        self.storage = storage
        super().__init__(
            f"{store} has no room left to write; free some space and try again, nothing committed is lost."
        )


class BodiesUnavailable(OperatorError):
    """The store of kept bodies does not do what it is asked, however often.

    Unlike an outage of the database it is not waited out: the pages would be fetched again and again."""

    code = "bodies_unavailable"

    def __init__(self, store: str, why: str, fix: str) -> None:
        super().__init__(f"the body store {store} is not available ({why}); {fix}.", store=store)


class NothingCrawled(OperatorError):
    """No seed gave a page."""

    code = "nothing_crawled"

    def __init__(self, crawl_id: str | None, why: str) -> None:
        what = "the test found no page" if crawl_id is None else f'no seed of crawl "{crawl_id}" gave a page'
        super().__init__(f"{what} ({why}); check the address and try again.")


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """How an error leaves the process: over HTTP, from the command line, over gRPC."""

    http_status: int
    exit_code: int
    grpc_status: str


RESPONSES: dict[type[ShoalError], ErrorResponse] = {
    InvalidInput: ErrorResponse(422, 2, "INVALID_ARGUMENT"),
    UsageError: ErrorResponse(400, 2, "INVALID_ARGUMENT"),
    NotFound: ErrorResponse(404, 5, "NOT_FOUND"),
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
    Interrupted: ErrorResponse(503, 11, "CANCELLED"),
    BadConfig: ErrorResponse(500, 4, "FAILED_PRECONDITION"),
    SchemaMismatch: ErrorResponse(503, 4, "FAILED_PRECONDITION"),
    StorageFull: ErrorResponse(507, 8, "RESOURCE_EXHAUSTED"),
    BodiesUnavailable: ErrorResponse(503, 8, "UNAVAILABLE"),
    NothingCrawled: ErrorResponse(502, 3, "UNAVAILABLE"),
}

_BY_CODE = {kind.code: kind for kind in RESPONSES}
_BY_STATUS: dict[int, type[ShoalError]] = {401: Unauthenticated, 403: NotAllowed, 404: NotFound, 413: TooLarge}
_OF_PROBLEMS = frozenset({"type", "title", "status", "code", "detail"})


def from_problem(problem: Mapping[str, Any], status: int) -> ShoalError:
    """The error that a problem document tells of, for whoever asked over HTTP; an unknown one by its status."""
    kind = _BY_CODE.get(str(problem.get("code")))
    if kind is None:
        kind = _BY_STATUS.get(status, BackendUnavailable if status >= 500 else UsageError)
    facts = {name: value for name, value in problem.items() if name not in _OF_PROBLEMS}
    return kind.again(str(problem.get("detail") or f"The server answered {status}."), facts)
