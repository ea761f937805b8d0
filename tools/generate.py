"""Writes the files that are made from code: `.env.example`, the reference pages, the state diagrams.

    python -m tools.generate            writes what changed
    python -m tools.generate --check    changes nothing; exits 1 and names what is stale

The same code always gives the same files: nothing of the machine, the time or the terminal goes in.
"""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType

import click
from msgspec import UNSET, to_builtins

from shoal.base import errors, query_params
from shoal.base.parsing import show
from shoal.base.request_form import Form, fields_of
from shoal.cli.root import COMMANDS, LazyCommands, shoal
from shoal.events.event import TYPES
from shoal.fetch.error_codes import PAGE_ERRORS
from shoal.observe.metrics import Metrics
from shoal.serve.api import GROUPS
from shoal.serve.endpoint import Endpoint, public_endpoints
from shoal.serve.openapi import problems_of, tag_of
from shoal.settings import SPEEDS
from shoal.settings_loader import CATALOGUE, SECTIONS, SettingEntry

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "shoal"
NOTICE = "Made by `make fix` from `{}`; changes made here are lost."
WIDTH = 100
SPELT_OUT = ("store", "networks", "name", "names")  # kinds whose name does not say how to write them


def main(arguments: list[str]) -> int:
    stale = [path for path, make in FILES.items() if _read(ROOT / path) != make()]
    if "--check" in arguments:
        for path in stale:
            print(f"stale: {path} (run `make fix`)", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(FILES[path](), "utf-8")
        print(f"wrote {path}")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def env_example() -> str:
    lines = [
        f"# {NOTICE.format('src/shoal/settings.py')}",
        "# Every setting with its default. Copy this file to .env, and uncomment what you change.",
    ]
    for section in SECTIONS:
        lines += ["", f"# {_about(section)}"]
        for entry in _entries(section):
            lines += ["", f"# {entry.description}{_not_yet(entry)}", f"#{entry.env}={_example(entry)}"]
    return "\n".join(lines) + "\n"


def _example(entry: SettingEntry) -> str:
    """A default as a shell or a compose file can read it; one that is made at start-up is left open."""
    if entry.default.startswith(("$", "sqlite:///$", "the ")) or "VERSION" in entry.default:
        return ""
    return entry.default


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        NOTICE.format("src/shoal/settings.py"),
        "",
        "Flags win over environment variables, those over `shoal.toml`, that over the default. `shoal.toml`",
        "is the file that `SHOAL_CONFIG` names, else the one in the current folder; it has the same names as",
        "the environment, at its top level:",
        "",
        "```toml",
        "WORKER_CONCURRENCY = 4",
        'SHOAL_LEASE = "20s"',
        'SHOAL_ALLOW_NETWORKS = ["10.1.0.0/16"]',
        "```",
        "",
        "A variable that is empty counts as unset. An unknown `SHOAL_…` variable or key of the file stops",
        "Shoal with exit code 4 and the nearest name. `shoal config show` prints every value and where it",
        "comes from.",
        "",
        "Durations are `500ms`, `10s`, `2m`, `1h`, `7d`; sizes `64KB`, `10MB`, `1GB` (powers of 1000) or",
        "`64KiB`, `10MiB`, `1GiB` (powers of 1024).",
    ]
    for section in SECTIONS:
        lines += [
            "",
            f"## {section}",
            "",
            _about(section),
            "",
            "| name | type | default | meaning |",
            "|---|---|---|---|",
        ]
        lines += [_setting_row(entry) for entry in _entries(section)]
        if section == "crawl":
            lines += _speed_table()
    return "\n".join(lines) + "\n"


def _setting_row(entry: SettingEntry) -> str:
    default = f"`{entry.default}`" if entry.default else "empty"
    form = f" Write {entry.form}." if entry.kind in SPELT_OUT else ""
    limits = f" Takes {entry.limits}." if entry.limits else ""
    summary = f"{entry.description}{form}{limits}{_not_yet(entry)}"
    return _row(f"`{entry.env}`", entry.kind + (", secret" if entry.secret else ""), default, summary)


def _speed_table() -> list[str]:
    rows = [_row(f"`{name}`", connections or "all", show(delay)) for name, (connections, delay) in SPEEDS.items()]
    head = "Speed profiles, within `MAX_CONCURRENT_CURL`; a number that somebody set beats the profile's:"
    return ["", head, "", "| speed | connections per host | delay |", "|---|---|---|", *rows]


def _not_yet(entry: SettingEntry) -> str:
    return " (Accepted; nothing uses it yet.)" if entry.planned else ""


def _about(section: str) -> str:
    return _first_line(SECTIONS[section])


def _entries(section: str) -> list[SettingEntry]:
    return [entry for entry in CATALOGUE.values() if entry.section == section]


def parameters_page() -> str:
    lines = [
        "# Parameters that make no other page",
        "",
        NOTICE.format("src/shoal/base/query_params.py"),
        "",
        "The built-in lists behind `SHOAL_TRACKING_PARAMS` and `SHOAL_SESSION_PARAMS`. Case makes no difference; a",
        "final `*` stands for any rest. [Normalize URLs](../guides/normalize-urls.md) says how they are used and how",
        "to change them.",
        "",
        "## Tracking",
        "",
        "They say where a visitor came from. They go out of the query.",
        "",
        *_names(query_params.TRACKING),
        "",
        "## Session",
        "",
        "They name a visit. They go out of the query, and out of the path where they stand as `;name=value`.",
        "",
        *_names(query_params.SESSION),
    ]
    return "\n".join(lines) + "\n"


def _names(names: tuple[str, ...]) -> list[str]:
    """One row per name, with the comment beside it."""
    said = dict(re.findall(r'^    "([^"]+)",  # (.+)$', inspect.getsource(query_params), flags=re.MULTILINE))
    return ["| name | of |", "|---|---|", *(_row(f"`{name}`", said.get(name, "")) for name in names)]


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        NOTICE.format("src/shoal/base/errors.py"),
        "",
        "Over HTTP an error is a problem document (RFC 9457) with this `code`; on the command line one",
        "sentence on stderr (with `--json` the same document) and this exit code; over gRPC this status.",
        "",
        "| code | meaning | HTTP | exit | gRPC |",
        "|---|---|---|---|---|",
    ]
    for error, answer in errors.RESPONSES.items():
        cells = (f"`{error.code}`", _first_line(error), answer.http_status, answer.exit_code)
        lines.append(_row(*cells, f"`{answer.grpc_status}`"))
    lines += [
        "",
        "Only over HTTP: `no_such_path` (404) and `method_not_allowed` (405) for what no endpoint answers, and",
        "`unexpected` (500) for a mistake of Shoal's, of which its log tells more.",
    ]
    return "\n".join(lines) + "\n"


def page_errors_page() -> str:
    lines = [
        "# Errors of pages",
        "",
        NOTICE.format("src/shoal/fetch/error_codes.py"),
        "",
        "What `error.code` of [a page's record](record.md) can be. A status such as 404 is no error: the server",
        "answered. A page that may be tried again is asked for several times, see `SHOAL_PAGE_ATTEMPTS`.",
        "",
        "| code | meaning | tried again |",
        "|---|---|---|",
    ]
    for code, meaning in PAGE_ERRORS.items():
        lines.append(_row(f"`{code}`", meaning.description, "yes" if meaning.tried_again else ""))
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        NOTICE.format("src/shoal/observe/metrics.py"),
        "",
        "What `/metrics` of a controller, or of a worker, tells in the form of Prometheus: what its own process did",
        "since it began. `GET /api/v1/stats` has the sums of all processes by the hour: jobs created, done, failed,",
        "expired and retried, the retry rate, the average duration of fetches, and the bots. From the metrics the",
        "average is `shoal_result_seconds_total` over `shoal_results_timed_total`, and the retry rate",
        "`shoal_jobs_retried_total` over the sum of itself, `shoal_jobs_done_total` and `shoal_jobs_failed_total`.",
        "",
        "| name | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for one in Metrics().tables:
        name = f"`{one.name}_total`" if one.kind == "counter" else f"`{one.name}`"
        lines.append(_row(name, one.kind, ", ".join(f"`{label}`" for label in one.labels), one.description))
    return "\n".join(lines) + "\n"


def events_page() -> str:
    lines = [
        "# Events",
        "",
        NOTICE.format("src/shoal/events/event.py"),
        "",
        "What `type` of an event can be, when it is sent, and the names in its `data`.",
        "[Webhooks and events](../guides/webhooks-and-events.md) says how to receive them.",
        "",
        "| type | when | data |",
        "|---|---|---|",
    ]
    for name, kind in TYPES.items():
        when = f"{kind.description} (not sent yet)" if kind.planned else kind.description
        lines.append(_row(f"`{name}`", when, ", ".join(f"`{one}`" for one in kind.data)))
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    lines = ["# Commands", "", NOTICE.format("src/shoal/cli/"), "", *_help_block(shoal, "shoal")]
    for name, lazy in COMMANDS.items():
        command = _loaded(lazy)
        if command is not None:
            lines += _command_part(command, f"shoal {name}", level=2)
    return "\n".join(lines).rstrip() + "\n"


def _loaded(lazy: LazyCommands) -> click.Command | None:
    """The command, or None while its module is not written yet; any other fault of it is raised."""
    module = lazy.where.partition(":")[0]
    path = PACKAGE.parent.joinpath(*module.split("."))
    return lazy.load() if path.with_suffix(".py").exists() or path.is_dir() else None


def _command_part(command: click.Command, path: str, level: int) -> Iterator[str]:
    yield from ("", f"{'#' * level} {path}", "", *_help_block(command, path))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _command_part(command.commands[name], f"{path} {name}", level + 1)


def _help_block(command: click.Command, path: str) -> list[str]:
    context = click.Context(
        command,
        info_name=path,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    return ["```text", *(line.rstrip() for line in command.get_help(context).splitlines()), "```"]


def http_page() -> str:
    lines = [
        "# HTTP",
        "",
        NOTICE.format("src/shoal/serve/"),
        "",
        "What `shoal serve` answers. It has the same at `/openapi.json`, as an OpenAPI 3.1 document, and at `/docs`.",
        "Errors are [problem documents](errors.md); unknown fields and query parameters are refused. Lists answer",
        "`{items, next}`, and `next` is the `cursor` of the next page. The scope is that of the token that is needed.",
    ]
    told = list(public_endpoints(GROUPS))
    first: dict[object, Endpoint] = {}  # of those that answer the same
    for line in told:
        first.setdefault(line.response, line)
    for tag in dict.fromkeys(map(tag_of, told)):
        lines += ["", f"## {tag}"]
        for line in told:
            lines += _endpoint_part(line, first[line.response]) if tag_of(line) == tag else []
    return "\n".join(lines) + "\n"


def _endpoint_part(line: Endpoint, first: Endpoint) -> Iterator[str]:
    yield from ("", f"### {line.method} {line.path}", "")
    scope = f"Scope `{line.scope}`." if line.scope else "No token needed."
    once = ["Honours `Idempotency-Key`."] if line.idempotency_key else []
    yield " ".join([line.summary, *line.about.split(), scope, *once])
    yield from _fields("query", line.query)
    yield from _fields("body", line.body)
    if line.request_example is not None:
        yield from ("", "```json", _json(line.request_example), "```")
    yield from ("", _answers(line, first))
    if line.response_example is not None and line is first:
        yield from ("", "```json", _json(line.response_example), "```")


def _answers(line: Endpoint, first: Endpoint) -> str:
    like = f", as {first.method} {first.path}" if line is not first and line.response_example is not None else ""
    kind = "" if line.response is None else f" ({line.media_type}{like})"
    codes = ", ".join(f"`{one.code}`" for one in problems_of(line))
    return f"Answers {line.status}{kind}" + f"; {codes}." * bool(codes)


def _fields(where: str, form: type[Form]) -> list[str]:
    fields = fields_of(form).values()
    if not fields:
        return []
    rows = [
        _row(f"`{one.name}`", one.description, one.accepts, "needed" if one.required else _default(one.default))
        for one in fields
    ]
    return ["", f"| {where} | meaning | takes | default |", "|---|---|---|---|", *rows]


def _json(value: object) -> str:
    """One line for each field, or for each item of a list."""
    if isinstance(value, dict) and set(value) == {"items", "next"}:
        return f'{{"items": [{", ".join(map(_json, value["items"]))}], "next": {json.dumps(value["next"])}}}'
    if not isinstance(value, dict) or len(value) < 3:
        return json.dumps(value, ensure_ascii=False)
    return (
        "{\n" + ",\n".join(f'  "{name}": {json.dumps(one, ensure_ascii=False)}' for name, one in value.items()) + "\n}"
    )


def _default(value: object) -> str:
    return "" if value is None or value is UNSET else f"`{json.dumps(to_builtins(value))}`"


def states_page() -> str:
    lines = [
        "# State machines",
        "",
        NOTICE.format("src/shoal/*/states.py"),
        "",
        "Every move is a compare-and-set; what is not drawn cannot happen.",
    ]
    for path in sorted(PACKAGE.glob("*/states.py")):
        module = importlib.import_module(f"shoal.{path.parent.name}.states")
        for name in sorted(vars(module)):
            if name == "MOVES" or name.endswith("_MOVES"):
                lines += _machine(module, name)
    return "\n".join(lines) + "\n"


Moves = Mapping[Enum, frozenset[Enum]]


def _machine(module: ModuleType, name: str) -> list[str]:
    moves: Moves = getattr(module, name)
    terminal: frozenset[Enum] = getattr(module, name.replace("MOVES", "TERMINAL"), frozenset())
    kind = type(next(iter(moves)))
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__.removesuffix("State"))
    meanings = _meanings(kind)
    rows = [_row(f"`{state.value}`", meanings.get(state.name, ""), "yes" * (state in terminal)) for state in moves]
    table = ["| state | meaning | final |", "|---|---|---|", *rows]
    return ["", f"## {title}", "", *table, "", "```mermaid", *_diagram(moves, terminal), "```"]


def _diagram(moves: Moves, terminal: frozenset[Enum]) -> Iterator[str]:
    yield "stateDiagram-v2"
    yield f"    [*] --> {next(iter(moves)).value}"
    for state, targets in moves.items():
        for target in (other for other in moves if other in targets):
            yield f"    {state.value} --> {target.value}"
        if state in terminal:
            yield f"    {state.value} --> [*]"


def _meanings(kind: type[Enum]) -> dict[str, str]:
    """The comment beside each state."""
    found = re.findall(r"^\s+(\w+) = .*?  # (.+)$", inspect.getsource(kind), flags=re.MULTILINE)
    return {name: comment[0].upper() + comment[1:] for name, comment in found}


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _row(*cells: object) -> str:
    escaped = [str(cell).replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


FILES: Mapping[str, Callable[[], str]] = {
    ".env.example": env_example,
    "docs/reference/settings.md": settings_page,
    "docs/reference/parameters.md": parameters_page,
    "docs/reference/errors.md": errors_page,
    "docs/reference/page-errors.md": page_errors_page,
    "docs/reference/events.md": events_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/http.md": http_page,
    "docs/internals/states.md": states_page,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
