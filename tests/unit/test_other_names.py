"""Other names of options, commands and fields: accepted wherever the option, command or field exists."""

from collections.abc import Iterator
from typing import Any

import click
import pytest

from shoal.base.errors import InvalidInput
from shoal.base.request_form import Form, OtherName
from shoal.cli.root import OTHER_NAMES, Command, shoal
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.page_jobs.spec import GroupConfig, PageConfig
from shoal.plan.policy import PolicyForm
from shoal.plan.policy_file import read_csv
from shoal.serve.api import GROUPS
from shoal.serve.endpoint import public_endpoints
from shoal.serve.jobs import QuotaForm

VALUES: dict[str, tuple[Any, Any]] = {  # what is written under the other name, and what the field gets
    "max_time": ("90s", 90.0),
    "delay": ("500ms", 0.5),
    "js": (True, "always"),
    "render": ("always", True),
}


def commands_below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands_below(f"{path} {name}", found)


COMMANDS = dict(commands_below("shoal", shoal))


def flags_of(command: click.Command) -> set[str]:
    return {flag for param in command.params for flag in param.opts}


def read(command: click.Command, words: list[str]) -> dict[str, Any]:
    with command.make_context("command", words, resilient_parsing=True) as context:
        return context.params


@pytest.mark.parametrize(("other", "name"), [*OTHER_NAMES.items()])
def test_every_command_accepts_the_other_names_of_its_options(other: str, name: str) -> None:
    if "add" in (other, name):
        return  # of commands, below
    having = {path: one for path, one in COMMANDS.items() if f"--{name}" in flags_of(one)}
    assert having
    for path, command in having.items():
        if f"--{other}" in flags_of(command):
            continue  # it means something else there
        assert isinstance(command, Command), path
        assert read(command, [f"--{other}", "7"]) == read(command, [f"--{name}", "7"]) != read(command, []), path


def test_an_option_that_a_command_has_under_no_name_is_quoted_as_written() -> None:
    worker = COMMANDS["shoal worker"]
    with pytest.raises(click.NoSuchOption, match="--most"):
        worker.make_context("command", ["--most", "3"])


@pytest.mark.parametrize("group", ["crawls", "jobs", "policies", "webhooks", "tokens"])
def test_things_are_added_or_created(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    context = click.Context(shoal)
    commands = shoal.get_command(context, group)
    assert isinstance(commands, click.Group)
    [one, other] = [commands.get_command(context, name) for name in ("add", "create")]
    assert one is other is not None


def test_js_is_render_always() -> None:
    for path in ("shoal crawl", "shoal crawls add", "shoal jobs add"):
        assert read(COMMANDS[path], ["--js"])["render"] == "always"
        assert read(COMMANDS[path], ["--render", "always"])["render"] == "always"
        assert read(COMMANDS[path], [])["render"] in (None, "never")


@pytest.mark.parametrize(
    ("words", "seconds", "urls"),
    [
        (["--wait", "https://a.example/"], float("inf"), ("https://a.example/",)),
        (["--wait", "10m", "https://a.example/"], 600.0, ("https://a.example/",)),
        (["https://a.example/", "--wait=30"], 30.0, ("https://a.example/",)),
        (["https://a.example/", "--wait"], float("inf"), ("https://a.example/",)),
        (["https://a.example/", "--", "--wait"], None, ("https://a.example/", "--wait")),
    ],
)
def test_wait_takes_a_duration_or_nothing(words: list[str], seconds: float | None, urls: tuple[str, ...]) -> None:
    for path in ("shoal crawls add", "shoal jobs add"):
        read_words = read(COMMANDS[path], words)
        assert (read_words["wait_seconds"], read_words["urls"]) == (seconds, urls)


def forms() -> set[type[Form]]:
    endpoints = list(public_endpoints(GROUPS))
    return {form for one in endpoints for form in (one.body, one.query)} | {PageConfig}


CASES = [(form, name) for form in sorted(forms(), key=lambda one: one.__name__) for name in form.other_names]


@pytest.mark.parametrize(("form", "other"), CASES, ids=[f"{form.__name__}-{name}" for form, name in CASES])
def test_a_form_accepts_the_other_names_of_its_fields(form: type[Form], other: str) -> None:
    known = {one.encode_name if hasattr(one, "encode_name") else one for one in form.__struct_fields__}
    if other in known:
        return  # it means something else there
    target = form.other_names[other]
    written, stored = VALUES[other] if isinstance(target, OtherName) else (7, 7)
    field = target.field if isinstance(target, OtherName) else target
    assert field in known
    assert form.own_names({other: written}) == {field: stored}
    with pytest.raises(InvalidInput, match=f"{other} is another name of {field}; give one of them"):
        form.own_names({field: stored, other: written})


def test_the_pairs_that_were_promised_are_accepted() -> None:
    crawl = {"processes": 2, "since": "crl_1", "js": True, "rule_set": {"fields": {"h": {"css": "h1"}}}}
    config = CrawlConfig.read({"seeds": ["https://a.example/"], "max_time": "1h", **crawl})
    assert (config.workers, config.recrawl_of, config.render, config.max_seconds) == (2, "crl_1", "always", 3600)
    assert config.rules == crawl["rule_set"]
    assert CrawlChange.read({"max_time": "1m"}).max_seconds == 60
    page = {"url": "https://a.example/", "frequency": "6h"}
    policy = PolicyForm.read(page | {"retries": 5, "crawl_config": {"render": "always"}}).checked()
    assert (policy.max_retry, policy.capability, policy.crawl_config) == (5, "js", {"js_required": True})
    group = GroupConfig.read({"urls": ["https://a.example/"], "retries": 1, "crawl_config": {"js": True}})
    assert (group.max_retry, group.crawl_config.js_required) == (1, True)
    assert QuotaForm.read({"most": 5}) == QuotaForm.read({"limit": 5})


def test_an_error_uses_the_name_that_was_given() -> None:
    with pytest.raises(InvalidInput, match=r"^retries cannot be 'many'; give a whole number from 0 to 20"):
        PolicyForm.read({"url": "https://a.example/", "retries": "many"})
    with pytest.raises(InvalidInput, match=r"^max_time 'soon' is not a duration; write it as"):
        CrawlConfig.read({"seeds": ["https://a.example/"], "max_time": "soon"})
    with pytest.raises(InvalidInput, match=r"^crawl_config.render cannot be 'auto' for a page job; give always or"):
        GroupConfig.read({"urls": ["https://a.example/"], "crawl_config": {"render": "auto"}})


def test_columns_of_a_policy_file_have_the_other_names_too() -> None:
    rules = '"{""fields"": {""name"": {""css"": ""h1""}}}"'
    [row] = read_csv(["url,frequency,retries,rules\n", f"https://a.example/,6h,5,{rules}\n"])
    assert row.form is not None, row.problem
    assert (row.form.max_retry, row.form.rule_set) == (5, {"fields": {"name": {"css": "h1"}}})
