"""The flags of a crawl: each is a field of the crawl with the field's description, and errors name the flag."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.base.errors import InvalidInput
from shoal.base.request_form import fields_of
from shoal.cli import crawl as command
from shoal.cli import options
from shoal.cli.options import (
    DURATION,
    FLAGS,
    CrawlFlag,
    DurationParam,
    flag_of,
    given_values,
    read_delay,
    read_header,
    read_seconds,
)
from shoal.crawl.crawl import CrawlConfig
from shoal.process.crawl_request import read_config, read_id

SEED = "http://a.example/"


def parsed(*words: str) -> CrawlConfig:
    """Return the config for a command line."""
    context = command.crawl.make_context("crawl", [SEED, *words])
    chosen = {name: value for name, value in context.params.items() if name in FLAGS}
    return read_config({"seeds": [SEED], **given_values(chosen)}, flag_of)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--depth", "7"], "depth", 7),
        (["--depth", "none"], "depth", None),
        (["--max-pages", "10"], "max_pages", 10),
        (["--scope", "domain"], "scope", "domain"),
        (["--include", "a", "--include", "b"], "include", ["a", "b"]),
        (["--sort-query"], "sort_query", True),
        (["--drop-param", "Ref", "--drop-param", "from_*"], "drop_params", ["ref", "from_*"]),
        (["--keep-param", "sid"], "keep_params", ["sid"]),
        (["--delay", "0.5"], "delay_seconds", 0.5),
        (["--speed", "max"], "speed", "max"),
        (["--user-agent", "me"], "user_agent", "me"),
    ],
)
def test_a_flag_sets_its_field(words: list[str], field: str, value: Any) -> None:
    assert getattr(parsed(*words), field) == value


def test_an_option_that_is_not_given_has_the_default_of_its_field() -> None:
    assert parsed() == CrawlConfig(seeds=[SEED])


def test_help_comes_from_the_field_descriptions() -> None:
    told = re.sub(r"\s+", " ", CliRunner().invoke(command.crawl, ["--help"], terminal_width=400).output)
    for field, flag in FLAGS.items():
        assert f"{flag.name} " in told
        assert (flag.about or fields_of(CrawlConfig)[field].description) in told
    assert (
        "--depth N Maximum number of links between a seed and a page; `none` removes the limit. "
        "[default: no limit, but 3 with --scope domain or any]" in told
    )
    assert "--scope page|prefix|host|domain|any" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--depth", "x"], "--depth cannot be 'x'; give a whole number from 0 to 10000"),
        (["--depth", "-1"], "--depth cannot be '-1'; give a whole number from 0 to 10000"),
        (["--scope", "planet"], "--scope cannot be 'planet'; give page, prefix, host, domain or any"),
        (["--delay", "-1"], "--delay '-1' is not a duration; write a duration such as 10, 30s, 1.5m or 2h"),
        (["--delay", "5000"], "--delay cannot be '5000.0'; give a number from 0 to 3600"),
        (["--exclude", "("], r"--exclude '\(' is not a regular expression"),
        (["--drop-param", "a=b"], '--drop-param contains "a=b", which is not a valid parameter name'),
        (["--keep-param", ""], '--keep-param contains "", which is not a valid parameter name'),
        (["--user-agent", "a\nb"], "--user-agent must be one line"),
    ],
)
def test_a_value_that_cannot_be_taken_is_refused_by_the_name_of_its_flag(words: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        parsed(*words)


def test_a_flag_may_read_what_people_write() -> None:
    flag = CrawlFlag("--max-time", "delay_seconds", "D", read_seconds, "a duration such as 10m")
    assert flag.value("2m") == 120
    with pytest.raises(InvalidInput, match="--max-time 'soon' is not a duration; write a duration such as 10m"):
        flag.value("soon")


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("0", 0), ("10s", 10), ("1.5m", 90), ("1m", 60), ("0.5", 0.5), ("500ms", 0.5)]
)
def test_durations_have_one_grammar_in_all_flags(text: str, seconds: float) -> None:
    assert parsed("--delay", text).delay_seconds == seconds
    if seconds:
        assert parsed("--max-time", text).max_seconds == seconds
        assert DURATION.convert(text, None, None) == seconds
    assert DurationParam(read_delay).convert(text, None, None) == seconds


@pytest.mark.parametrize(("written", "meant"), [("max_depth", "depth"), ("urls", "seeds"), ("depht", "depth")])
def test_a_field_is_suggested_by_what_else_it_is_called(written: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{written} is not a known field; the nearest one is {meant}\.$"):
        read_config({"seeds": ["https://example.com/"], written: 1})


def test_further_seeds_are_counted_by_shoal_alone() -> None:
    with pytest.raises(InvalidInput, match=r"^more_seeds is counted by Shoal; leave it out\.$"):
        read_config({"seeds": ["https://example.com/"], "more_seeds": 3})


def test_repeated_pairs_become_a_table() -> None:
    flag = CrawlFlag("--label", "labels", "H", read_header, "NAME: VALUE")
    assert flag.value(("a: 1", "b:2")) == {"a": "1", "b": "2"}
    with pytest.raises(InvalidInput, match="--label 'nothing' is not a header"):
        flag.value(("nothing",))


@pytest.mark.parametrize("text", ["a", "A.b_c-1", ".a", "...", "x" * 64])
def test_an_id_of_ones_own_is_taken(text: str) -> None:
    assert read_id(text, "--id") == text


@pytest.mark.parametrize("text", ["", "a b", "../x", ".", "..", "x" * 65, "é", "a\n"])
def test_an_id_with_anything_else_in_it_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--id"):
        read_id(text, "--id")


def test_an_address_that_cannot_be_crawled_is_refused_as_what_the_person_wrote() -> None:
    with pytest.raises(InvalidInput, match=r"^URL 'example\.com' is not an absolute http or https URL"):
        read_config({"seeds": ["example.com"]}, flag_of)


def test_a_hook_that_nobody_offers_is_refused_by_its_flag() -> None:
    with pytest.raises(InvalidInput, match=r"^--hook names 'none', which no installed package provides"):
        parsed("--hook", "none")


@pytest.mark.parametrize("name", ["os:system", "a b", "", "x\n", "../x"])
def test_a_hook_that_cannot_be_the_name_of_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="hooks"):
        CrawlConfig.read({"seeds": ["https://example.com/"], "hooks": [name]})
    assert CrawlConfig.read({"seeds": ["https://example.com/"], "hooks": ["my-shop.prices"]}).hooks


def test_a_file_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "LARGEST_FILE", 1_000)
    (tmp_path / "gate").write_bytes(b"x" * 1_000)
    assert len(options.read_file(str(tmp_path / "gate"), "rules")) == 1_000
    with pytest.raises(InvalidInput, match="is larger than 1KB; pass a file with rules"):
        options.read_file("/dev/zero", "rules")
