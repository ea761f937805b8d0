"""A job group: many page jobs that somebody made together and waits for as one. What it is, asks for and answers."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from shoal.base.ids import GroupId
from shoal.base.request_form import describe, matching
from shoal.page_jobs.spec import PageSpec, Text

MOST_URLS: Final = 10_000

Name = Annotated[str, matching(r"^[A-Za-z0-9_.-]{1,64}\Z", "1 to 64 letters, digits and `_.-`")]
Id = Annotated[
    str, matching(r"^(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}\Z", "1 to 64 letters, digits and `_.-`")
]  # no path that leads elsewhere
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class GroupState(StrEnum):
    OPEN = "open"  # some of its jobs wait or are worked on
    COMPLETED = "completed"  # each of its jobs has ended, well or not
    CANCELLED = "cancelled"  # somebody did not want the rest


MOVES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMPLETED, GroupState.CANCELLED}),
    GroupState.COMPLETED: frozenset(),
    GroupState.CANCELLED: frozenset(),
}


class GroupConfig(PageSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asks for: a job for each of these URLs, all fetched in the same way."""

    urls: Annotated[list[Text], describe("What to fetch: a job for each.", min_length=1, max_length=MOST_URLS)]
    group: Annotated[Id | None, describe("The id of the group; one is made up if there is none.")] = None
    priority: Annotated[int, describe("Priority from 0 to 100; higher runs first.", ge=0, le=100)] = 50
    max_retry: Annotated[
        Annotated[int, Meta(ge=0, le=99)] | None, describe("How often a page that failed is tried again.")
    ] = None
    project: Annotated[Name, describe("What the group is filed under.")] = "default"
    labels: Annotated[dict[Word, Word], describe("Words of your own.", max_length=64)] = {}

    raw = frozenset({"urls"})  # judged one by one, by their places


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its row says, with what became of its jobs so far."""

    number: int
    id: GroupId
    state: GroupState
    state_reason: str | None
    project: str
    labels: dict[str, str]
    priority: int
    total: int
    spec: PageSpec | None  # None: this version cannot read it
    created_at: int
    finished_at: int | None
    jobs: dict[str, int] = field(default_factory=dict)  # how many of them are in each state
