"""A job group: page jobs created together and waited for as one. Its state and its request form."""

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
]  # the pattern rules out path traversal
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class GroupState(StrEnum):
    OPEN = "open"  # some of its jobs are waiting or running
    COMPLETED = "completed"  # all of its jobs have ended, successfully or not
    CANCELLED = "cancelled"  # cancelled before all of its jobs had ended


MOVES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMPLETED, GroupState.CANCELLED}),
    GroupState.COMPLETED: frozenset(),
    GroupState.CANCELLED: frozenset(),
}


class GroupConfig(PageSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request for a group: one job for each URL, all fetched in the same way."""

    urls: Annotated[
        list[Text], describe("URLs to fetch; one job is created for each.", min_length=1, max_length=MOST_URLS)
    ]
    group: Annotated[Id | None, describe("Id of the group; generated if omitted.")] = None
    priority: Annotated[int, describe("Priority from 0 to 100; higher runs first.", ge=0, le=100)] = 50
    max_retry: Annotated[
        Annotated[int, Meta(ge=0, le=99)] | None, describe("Maximum number of retries of a failed page.")
    ] = None
    project: Annotated[Name, describe("Project that the group belongs to.")] = "default"
    labels: Annotated[dict[Word, Word], describe("Labels as name and value.", max_length=64)] = {}

    raw = frozenset({"urls"})  # validated one by one, reported by index


@dataclass(frozen=True, slots=True)
class Group:
    """A stored group, with the states of its jobs."""

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
    jobs: dict[str, int] = field(default_factory=dict)  # number of jobs by state
