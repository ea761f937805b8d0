"""The options of a crawl as command-line flags: their names, and how their text is parsed.

Help, choices and defaults come from `CrawlConfig`, which also validates the values. A new flag needs only one line
here.
"""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from shoal.base.errors import InvalidInput, ShoalError, UsageError
from shoal.base.parsing import read_duration, read_pause, read_size, show_size
from shoal.base.request_form import fields_of
from shoal.base.text import shorten, visible
from shoal.cli.completion import complete_id
from shoal.cli.root import WaitOption
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.credentials import SECRET_FIELDS
from shoal.crawl.lifecycle.change import CrawlChange

LARGEST_FILE = 256_000_000  # maximum size in bytes of a file that is read as a whole
FIELDS = fields_of(CrawlConfig)
CHANGEABLE = fields_of(CrawlChange)
OUTPUT_HELP = (
    "Write the pages to FILE: .jsonl, .json, .csv, .parquet, .warc.gz, .md (a folder), or - (JSONL on stdout). A file"
    " named links.csv, links.jsonl and so on gets the links. Repeatable."
)
LINKS_HELP = (
    "Write the links to FILE, each with its text, its kind and the status of its target: .csv, .jsonl, .json,"
    " .parquet, or - (JSONL on stdout). Repeatable."
)

Command = TypeVar("Command", bound=Callable[..., Any])


def table_flags(command: Command) -> Command:
    """Add the flags that choose the columns and rows of a table of pages."""
    fields = click.option(
        "--fields",
        metavar="F,F…",
        help="Write only these fields, in this order, such as url,title,data.price. Not for .warc.gz and .md.",
    )
    explode = click.option(
        "--explode",
        metavar="FIELD",
        help="Write one row for each item of this list, such as `reviews`. A page without items gets no row.",
    )
    return fields(explode(command))


def may_overwrite() -> Callable[[str, str], bool] | None:
    """Return a function that asks the user before a file is replaced; None if there is no user at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    return lambda name, what: click.confirm(f"{visible(name)} {what}. Overwrite it?", err=True)


DURATION_FORM = "a duration such as 10, 30s, 1.5m or 2h"  # a bare number is in seconds


def read_seconds(text: str) -> float:
    return read_duration(text).total_seconds()


def read_delay(text: str) -> float:
    return read_pause(text).total_seconds()


class DurationParam(click.ParamType[float]):
    """A flag type for durations. The command gets the number of seconds."""

    name = "duration"

    def __init__(self, read: Callable[[str], float] = read_seconds) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return self._read(str(value))
        except ValueError as error:
            flag = param.opts[-1] if param is not None else "it"
            raise InvalidInput(flag, f"{shorten(value)!r} {error}", f"write {DURATION_FORM}") from None


DURATION = DurationParam()


def wait_option(about: str, bare: str = "inf", **more: Any) -> Callable[[Command], Command]:
    """Add `--wait`, with or without a duration, as `wait_seconds`. `bare`: the duration if none is given."""
    kind = DurationParam(lambda text: math.inf if text == "inf" else read_delay(text))
    return click.option(
        "--wait", "wait_seconds", cls=WaitOption, bare=bare, type=kind, metavar="[D]", help=about, **more
    )


def read_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError("is not a header")
    return name.strip(), value.strip()


def read_label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign or not value:
        raise ValueError("is not a label")
    return name, value


def read_rules_file(path: str) -> dict[str, Any]:
    from shoal.extract.rules import rules_of

    return rules_of(read_file(path, "a rule set"), path)


def read_hook(name: str) -> str:
    """Check that the hook is installed: a crawl whose hook is missing must not start."""
    from shoal.extract.optional_facts import find_hooks

    try:
        find_hooks([name])
    except InvalidInput as error:
        raise error.called(lambda _: "--hook") from None
    return name


def read_file(path: str, what: str) -> bytes:
    """Read a file that the user named. Raise a clear error if the file cannot be read."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, RuntimeError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise InvalidInput(shorten(path), f"cannot be read ({why})", f"pass a readable file with {what}") from None
    if len(data) > LARGEST_FILE:
        raise InvalidInput(shorten(path), f"is larger than {show_size(LARGEST_FILE)}", f"pass a file with {what}")
    return data


NONE = "none"


@dataclass(frozen=True, slots=True)
class CrawlFlag:
    """A flag of a crawl option. `read` parses its text; the message of its `ValueError` completes a sentence such as
    "--delay is not a duration". Without `read`, the field of the config validates the text."""

    name: str
    field: str
    metavar: str | None = None
    read: Callable[[str], Any] | None = None
    form: str | None = None  # the expected syntax, for error messages
    at_once: bool = False  # one value sets the whole field, although the field is a list or a table
    otherwise: str | None = None  # the default in words, for a field without a default value
    about: str | None = None  # the help, if the description of the field does not suit a command line

    @property
    def kind(self) -> Any:
        """The field's type, without the `None` of an optional field."""
        return FIELDS[self.field].kind

    @property
    def help(self) -> str:
        field = FIELDS[self.field]
        shown = self.otherwise or field.default
        default = f"  [default: {shown}]" if shown else ""
        again = " Repeatable." if self.repeated else ""
        return f"{self.about or field.description}{again}{default}"

    @property
    def repeated(self) -> bool:
        return not self.at_once and get_origin(self.kind) in (list, dict)

    @property
    def choices(self) -> str | None:
        return "|".join(get_args(self.kind)) if get_origin(self.kind) is Literal else None

    def declared(self, command: Command) -> Command:
        if self.kind is bool:
            return click.option(self.name, self.field, is_flag=True, help=self.help)(command)
        return self._option(self.help)(command)

    def changed(self, command: Command) -> Command:
        """Add the flag to a command that changes the option."""
        again = " Repeatable." if self.repeated else ""
        return self._option(CHANGEABLE[self.field].description + again)(command)

    def _option(self, about: str) -> Callable[[Command], Command]:
        complete = complete_id if self.metavar == "ID" else self._complete_choice
        metavar = self.choices or self.metavar
        return click.option(
            self.name, self.field, multiple=self.repeated, metavar=metavar, help=about, shell_complete=complete
        )

    def _complete_choice(self, context: click.Context, param: click.Parameter, written: str) -> list[str]:
        return [choice for choice in get_args(self.kind) if choice.startswith(written)] if self.choices else []

    def value(self, given: Any) -> Any:
        """Convert the given text to the value of the field."""
        if self.read is None:
            return list(given) if self.repeated else given
        if not self.repeated:
            return self.read_text(given)
        values = [self.read_text(text) for text in given]
        return self._table(values) if get_origin(self.kind) is dict else values

    def _table(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInput(self.name, f"names {shorten(name)!r} twice", "pass it once")
        return dict(pairs)

    def read_text(self, text: str) -> Any:
        """Convert one text. If it is invalid, raise `InvalidInput` with the name of the flag."""
        assert self.read is not None
        try:
            return self.read(text)
        except ValueError as error:
            problem = f"has a value that {error}" if self.field in SECRET_FIELDS else f"{shorten(text)!r} {error}"
            raise InvalidInput(self.name, problem, f"write {self.form}") from None


HOOK_HELP = "Call this hook, a function of an installed package, with each page."
NO_LIMIT, BY_SPEED = "no limit", "set by --speed"
PROMISED = (
    CrawlFlag(
        "--depth",
        "depth",
        "N",
        lambda text: None if text == NONE else text,
        otherwise="no limit, but 3 with --scope domain or any",
        about="Maximum number of links between a seed and a page; `none` removes the limit.",
    ),
    CrawlFlag("--max-pages", "max_pages", "N", otherwise=NO_LIMIT),
    CrawlFlag("--max-bytes", "max_bytes", "SIZE", read_size, "a size such as 500MB or 2GiB", otherwise=NO_LIMIT),
    CrawlFlag("--max-time", "max_seconds", "D", read_seconds, DURATION_FORM, otherwise=NO_LIMIT),
    CrawlFlag("--max-pages-per-host", "max_pages_per_host", "N", otherwise=NO_LIMIT),
    CrawlFlag("--scope", "scope"),
    CrawlFlag("--include", "include", "RE", otherwise="all URLs in scope"),
    CrawlFlag("--exclude", "exclude", "RE", otherwise="none"),
    CrawlFlag("--sort-query", "sort_query"),
    CrawlFlag("--drop-param", "drop_params", "NAME"),
    CrawlFlag("--keep-param", "keep_params", "NAME"),
    CrawlFlag("--speed", "speed"),
    CrawlFlag("--concurrency", "concurrency", "N", otherwise=BY_SPEED),
    CrawlFlag("--workers", "workers", "N"),
    CrawlFlag("--delay", "delay_seconds", "D", read_delay, DURATION_FORM, otherwise=BY_SPEED),
    CrawlFlag("--render", "render"),
    CrawlFlag("--wait-for", "wait_for", "[RE -> ]CSS"),
    CrawlFlag("--scroll", "scroll"),
    CrawlFlag("--click", "click", "CSS"),
    CrawlFlag("--robots", "robots"),
    CrawlFlag("--sitemap", "sitemap"),
    CrawlFlag("--user-agent", "user_agent", "S", otherwise="SHOAL_USER_AGENT"),
    CrawlFlag(
        "--header",
        "headers",
        "H",
        read_header,
        "it as NAME: VALUE",
        about="Send this header, as NAME: VALUE, to the origins of the seeds; Accept… headers are sent to all hosts.",
    ),
    CrawlFlag("--proxy", "proxy", "URL", otherwise="none"),
    CrawlFlag("--rules", "rules", "FILE", read_rules_file, "the path of a TOML or JSON file", at_once=True),
    CrawlFlag("--hook", "hooks", "NAME", read_hook, about=HOOK_HELP),
    CrawlFlag("--keep-bodies", "keep_bodies"),
    CrawlFlag("--recrawl-of", "recrawl_of", "ID"),
)
FLAGS = {flag.field: flag for flag in PROMISED if flag.field in FIELDS}
PRIORITY = CrawlFlag("--priority", "priority", "N")
CHANGES = {flag.field: flag for flag in (*PROMISED, PRIORITY) if flag.field in CHANGEABLE}
ADDED = FLAGS | {
    flag.field: flag
    for flag in (
        CrawlFlag("--hook", "hooks", "NAME", about=HOOK_HELP),  # looked up on the machine that runs the crawl
        CrawlFlag("--links", "links", about="Store the links too, for `shoal crawls export --links`."),
        CrawlFlag("--project", "project", "NAME"),
        CrawlFlag("--label", "labels", "K=V", read_label, "it as name=value", about="Add this label."),
        PRIORITY,
    )
}

SECTIONS: Mapping[str, Sequence[str]] = {
    "Scope": (
        *("seeds_file", "site", "scope", "depth", "include", "exclude", "sitemap", "recrawl_of"),
        *("sort_query", "drop_params", "keep_params"),
    ),
    "Limits": ("max_pages", "max_bytes", "max_seconds", "max_pages_per_host"),
    "Politeness": ("speed", "concurrency", "delay_seconds", "robots", "user_agent"),
    "Content": (
        *("headers", "proxy", "render", "wait_for", "scroll", "click"),
        *("rules", "rule_set", "hooks", "keep_bodies"),
    ),
    "Schedule": ("frequency", "cron", "timezone", "max_retry", "more"),
    "Audit": ("gate", "baseline", "annotations", "commit", "commit_context"),
    "Output": (
        *("output", "links", "fields", "explode", "screenshots", "quiet", "as_json"),
        *(f"{form}_report" for form in ("html", "json", "junit", "sarif", "markdown")),
    ),
    "Crawl": (
        "crawl_id",
        "resume",
        "workers",
        "project",
        "labels",
        "priority",
        "priority_base",
        "hold",
        "wait_seconds",
    ),
    "Store": ("store", "server", "token", "token_file"),
}
"""The groups of options in the help of commands that crawl."""


js_flag = click.option("--js", "render", flag_value="always", hidden=True)
"""Another name of `--render always`."""


def flags_of(flags: dict[str, CrawlFlag]) -> Callable[[Command], Command]:
    """Return a decorator that adds these flags to a command, in this order."""

    def declared(command: Command) -> Command:
        for flag in reversed(flags.values()):
            command = flag.declared(command)
        return js_flag(command)

    return declared


crawl_flags, add_flags = flags_of(FLAGS), flags_of(ADDED)


def fetch_flags(command: Command) -> Command:
    """Add the flags that determine how a page is fetched."""
    for field in ("proxy", "headers", "user_agent", "robots", "click", "scroll", "wait_for", "render"):
        command = FLAGS[field].declared(command)
    return command


def change_flags(command: Command) -> Command:
    """Add the flags for options that can be changed while a crawl runs."""
    for flag in reversed(CHANGES.values()):
        command = flag.changed(command)
    return command


def changed_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the given flags, by field; the value `none` removes a limit or a filter."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if not given:
        known = ", ".join(flag.name for flag in CHANGES.values())
        raise UsageError("Nothing to change", f"give at least one of {known}")
    gone: dict[str, Any] = {
        name: None if value == NONE else [] for name, value in given.items() if value in (NONE, (NONE,))
    }
    return {name: CHANGES[name].value(value) for name, value in given.items() if name not in gone} | gone


def flag_of(field: str) -> str:
    """Return the flag of a field."""
    return ADDED[field].name if field in ADDED else "URL" if field.partition("[")[0] == "seeds" else field


def given_values(options: Mapping[str, Any], flags: Mapping[str, CrawlFlag] = FLAGS) -> dict[str, Any]:
    """Return the values of the given flags by field."""
    given = {name: value for name, value in options.items() if value not in (None, (), False)}
    return {name: flags[name].value(value) for name, value in given.items()}


def with_urls_named(error: ShoalError, field: str, places: Sequence[str]) -> ShoalError:
    """Return the error with each `field[number]` replaced by the words of the user: a URL, or a line of a file."""

    def name(match: re.Match[str]) -> str:
        given = shorten(places[int(match[1])]) if int(match[1]) < len(places) else match[0]
        return "URL" if repr(given) in error.message else given

    return error.again(re.sub(rf"\b{field}\[([0-9]{{1,9}})\]", name, error.message), error.facts)
