"""The fates that drivers write as numbers are those of the rules."""

import re
from importlib.resources import files

import pytest

from shoal.crawl.frontier.fates import CLAIMABLE, REOPENING, Fate
from shoal.drivers.redis import connection as scripts

SCRIPT = (scripts.FOLDER / "frontier.lua").read_text()
QUERIES = files("shoal.crawl.frontier").joinpath("sql_frontier.postgres.sql").read_text()


@pytest.mark.parametrize(("name", "fates"), [("reopening", REOPENING), ("claimable", CLAIMABLE)])
def test_the_scripts_of_redis_have_the_same_sets(name: str, fates: frozenset[Fate]) -> None:
    [table] = re.findall(rf"^local {name} = {{(.*)}}$", SCRIPT, re.MULTILINE)
    assert {Fate(int(number)) for number in re.findall(r"\['(\d+)'\] = true", table)} == fates


def test_the_scripts_of_redis_have_the_same_numbers() -> None:
    [numbers] = re.findall(r"^local OPEN, FETCHED, QUARANTINED, VIA, SKIPPED = (.*)$", SCRIPT, re.MULTILINE)
    skipped = min(fate for fate in Fate if fate.skipped)
    found = [int(number.strip("'")) for number in numbers.split(", ")]
    assert found == [Fate.OPEN, Fate.FETCHED, Fate.QUARANTINED, Fate.FETCHED_VIA, skipped]


def test_postgres_reopens_the_same_urls() -> None:
    [query] = re.findall(r"^-- name: add_fates$(.*?);$", QUERIES, re.MULTILINE | re.DOTALL)
    sets = [{Fate(int(number)) for number in numbers.split(", ")} for numbers in re.findall(r"IN \(([\d, ]+)\)", query)]
    assert sets == [REOPENING] * 2
    [unknown] = re.findall(r"g\.key\), (\d+)\)", query)
    assert Fate(int(unknown)) in REOPENING, "an unknown URL is added"
