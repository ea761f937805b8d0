"""Resources: fields that are copied from the values they show."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import pytest
from msgspec import UNSET, UnsetType

from shoal.base.request_form import describe
from shoal.serve.resources.resource import Moment, Resource


@dataclass(frozen=True, slots=True)
class Boat:
    name: str
    secret: str
    built_at: int
    sunk_at: int | None = None

    @property
    def length(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class Crew:
    name: str
    size: int


class ShownBoat(Resource, kw_only=True):
    name: str
    length: int
    built_at: Moment
    sunk_at: Annotated[Moment | None, describe("When it sank.")]


class ShownCrew(ShownBoat, kw_only=True):
    size: int
    captain: str | UnsetType = UNSET


BOAT = Boat("Anna", "hidden", built_at=1_000_000)


def test_attributes_of_the_same_name_are_copied_and_stored_times_become_moments() -> None:
    built = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert ShownBoat.of(BOAT) == ShownBoat(name="Anna", length=4, built_at=built, sunk_at=None)


def test_a_given_field_is_not_copied() -> None:
    assert ShownBoat.of(BOAT, name="Berta").name == "Berta"
    assert ShownBoat.of(BOAT).name == "Anna"  # the plan of another call is not taken


def test_the_first_value_with_a_field_has_it_and_one_that_no_value_has_keeps_its_default() -> None:
    shown = ShownCrew.of(BOAT, Crew("the crew", 3))
    assert (shown.name, shown.size, shown.captain) == ("Anna", 3, UNSET)
    with pytest.raises(TypeError, match="size"):
        ShownCrew.of(BOAT)
