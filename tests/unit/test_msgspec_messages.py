"""The messages of msgspec that `base/request_form.py` reads, word for word. When a new version words one of them
differently, this fails first: change the parser, then the version range in pyproject.toml."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct, ValidationError, convert


class Colour(StrEnum):
    RED = "red"


class Inner(Struct, forbid_unknown_fields=True):
    name: str

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("is bad; give a good one")


class Outer(Struct, forbid_unknown_fields=True):
    inner: list[Inner] = []


Short = Annotated[str, Meta(min_length=2, max_length=3)]


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("x", int, "Expected `int`, got `str`"),
        (1.5, int, "Expected `int`, got `float`"),
        ("x", int | None, "Expected `int | null`, got `str`"),
        ("x", list[int], "Expected `array`, got `str`"),
        ("x", dict[str, int], "Expected `object`, got `str`"),
        ([1, "x"], list[int], "Expected `int`, got `str` - at `$[1]`"),
        ({"a": "x"}, dict[str, int], "Expected `int`, got `str` - at `$[...]`"),
        ("x", Short, "Expected `str` of length >= 2"),
        ("long", Short, "Expected `str` of length <= 3"),
        ([1, 2], Annotated[list[int], Meta(max_length=1)], "Expected `array` of length <= 1"),
        (0, Annotated[int, Meta(ge=1)], "Expected `int` >= 1"),
        (9, Annotated[int, Meta(le=5)], "Expected `int` <= 5"),
        (0, Annotated[float, Meta(gt=0)], "Expected `float` > 0.0"),
        ("X", Annotated[str, Meta(pattern="^[a-z]+$")], "Expected `str` matching regex '^[a-z]+$'"),
        ("x", datetime, "Invalid RFC3339 encoded datetime"),
        (10**400, float, "Number out of range"),
        ("x", Colour, "Invalid enum value 'x'"),
        ("x", Literal["a"], "Invalid enum value 'x'"),
        (["x"], list[Literal["a"]], "Invalid enum value 'x' - at `$[0]`"),
        ({}, Inner, "Object missing required field `name`"),
        ({"name": "a", "more": 1}, Inner, "Object contains unknown field `more`"),
        ({"inner": [{}]}, Outer, "Object missing required field `name` - at `$.inner[0]`"),
        ({"inner": [{"name": 1}]}, Outer, "Expected `str`, got `int` - at `$.inner[0].name`"),
        ({"inner": [{"name": "bad"}]}, Outer, "is bad; give a good one - at `$.inner[0]`"),
    ],
)
def test_a_message_is_worded_as_the_parser_expects(value: Any, kind: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        convert(value, kind)
    assert str(refused.value) == message


def test_text_for_a_huge_number_is_refused_in_these_words() -> None:
    with pytest.raises(ValidationError, match=r"^Integer value out of range$"):
        convert("9" * 5000, int, strict=False)


def test_the_installed_version_is_in_the_tested_range() -> None:
    """A range that ends before the next minor version is what makes the table above enough."""
    import tomllib
    from importlib.metadata import version
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    [pinned] = [one for one in project["dependencies"] if one.startswith("msgspec")]
    major, minor, _ = version("msgspec").split(".")
    assert pinned == f"msgspec>={major}.{minor},<{major}.{int(minor) + 1}"
