"""`shoal policies`: manage recurring crawls."""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
import orjson

from shoal.base.errors import BadConfig, InvalidInput, UsageError
from shoal.base.text import plural, shorten
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on, with_api_target
from shoal.cli.completion import id_argument
from shoal.cli.options import ADDED, SECTIONS, may_overwrite, read_file, read_rules_file, with_urls_named
from shoal.cli.output import (
    Columns,
    add_rm,
    add_show,
    api_options,
    cursor_option,
    facts_of,
    limit_option,
    print_answer,
    print_json,
    print_list,
    print_table,
    to_the_second,
)
from shoal.cli.root import CommandGroup
from shoal.cli.seeds import Seeds, batches, seeds_option
from shoal.observe.logs import note
from shoal.pages.export.output import may_replace
from shoal.pages.export.part_file import PartFile, check_replace
from shoal.plan.policy import MOST_SITE_SEEDS

POLICIES = "/api/v1/policies"
POLICY = f"{POLICIES}/{{}}"
OWNER_ONLY = 0o600
LONGEST_CELL = 200  # characters of data in a table
KINDS = {".csv": "text/csv", ".jsonl": "application/x-ndjson"}

_id = id_argument("policy_id")


@click.group(cls=CommandGroup)
def policies() -> None:
    """Schedule recurring crawls of pages and sites."""


def _fields(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the fields of a policy."""
    options = (
        click.option("--frequency", metavar="D", help="Interval between runs; for example, `6h`, `24h` or `7d`."),
        click.option(
            "--cron", metavar="EXPR", help='Schedule as a cron expression, instead of --frequency: "30 6 * * 1-5".'
        ),
        click.option("--timezone", metavar="ZONE", help="Time zone of --cron and of time windows."),
        click.option("--priority", "priority_base", type=int, metavar="N", help="Base priority from 0 to 100."),
        click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Add this label. Repeatable."),
        click.option("--project", metavar="NAME", help="Project that the policy belongs to."),
        click.option("--rules", "rule_set", metavar="FILE", help="Rule set with the data to extract from the page."),
        click.option("--retries", "max_retry", type=int, metavar="N", help="Retry a failed run up to N times."),
        click.option(
            "--set",
            "more",
            multiple=True,
            metavar="FIELD=JSON",
            help="Set another field, such as jitter=5m. Repeatable.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@policies.command(
    sections=SECTIONS,
    epilog="Example: shoal policies add https://shop.example/item/17 --frequency 6h --label team=prices",
)
@click.argument("urls", nargs=-1, metavar="[URL]")
@seeds_option
@click.option("--site", is_flag=True, help="Crawl the whole site from these URLs, instead of one page.")
@_fields
@api_options
def add(
    urls: tuple[str, ...], seeds_file: str | None, site: bool, target: ApiTarget, as_json: bool, **given: Any
) -> None:
    """Create a policy for a page, or for a site with --site. With --seeds, create a policy for each page of the file.
    With --seeds and --site, create one policy for a site with these seeds."""
    seeds = Seeds(urls, seeds_file)
    if not site and (seeds_file is not None or any(url.startswith("@") for url in urls)):
        _add_each(seeds, _form(given), target, as_json)
        return
    if not seeds or (seeds.count > 1 and not site):
        raise UsageError("A policy is for one URL", "pass one URL, or the seeds of a site with --site")
    if seeds.count > MOST_SITE_SEEDS:
        what = f"The policy of a site has at most {MOST_SITE_SEEDS:,} seeds, not {seeds.count:,}"
        raise UsageError(what, "leave out --site to create a policy for each page")
    given_urls = [seed.url for seed in seeds]
    form = {"seeds": given_urls} if site else {"url": given_urls[0]}
    try:
        made = run_on(target, lambda api: api.post(POLICIES, form | _form(given)), existing=False)
    except InvalidInput as error:
        raise with_urls_named(error, "seeds", [seed.place or seed.url for seed in seeds]) from None
    if as_json:
        print_json(made)
    else:
        print(made["id"], flush=True)
        first = to_the_second(made["next_run_at"])
        note(f"First run at {first}." if first else "No run is planned: the policy is disabled or has ended.")


def _add_each(seeds: Seeds, form: dict[str, Any], target: ApiTarget, as_json: bool) -> None:
    """Create a policy for each URL. Each batch of policies is created in one commit."""

    async def upload(api: ApiClient) -> int:
        made = 0
        for batch in batches(iter(seeds)):
            lines = b"".join(orjson.dumps(form | {"url": seed.url}) + b"\n" for seed in batch)
            report = await api.upload(f"{POLICIES}/import", lines, KINDS[".jsonl"], bad="refuse")
            made += report["made"]
            for problem in report["problems"][:1]:
                place = batch[problem["line"] - 1].place
                left = f"{plural(made, 'policy', 'policies')} from the lines before it were created" if made else "none"
                raise InvalidInput(place, problem["problem"].rstrip("."), f"correct it ({left})")
        return made

    made = run_on(target, upload, existing=False)
    if as_json:
        print_json({"made": made})
    else:
        print(f"Created {plural(made, 'policy', 'policies')}.")


@policies.command("set", epilog="Example: shoal policies set pol_01hr2v8k3m4n5p6q --frequency 1h --set jitter=5m")
@_id
@_fields
@api_options
def change(policy_id: str, target: ApiTarget, as_json: bool, **given: Any) -> None:
    """Change fields of a policy; other fields stay unchanged. --label replaces all labels."""
    form = _form(given)
    if not form:
        raise UsageError("Nothing to change", "pass a field, such as --frequency 1h or --set jitter=5m")
    policy = run_on(target, lambda api: api.patch(at(POLICY, policy_id), form))
    print_answer(policy, f"Changed {policy['id']}.", as_json=as_json)


@policies.command("ls")
@click.option("--project", metavar="NAME", help="Select policies of this project.")
@click.option("--enabled/--disabled", default=None, help="Show only enabled, or only disabled policies.")
@limit_option()
@cursor_option
@api_options
def list_policies(
    project: str | None, enabled: bool | None, limit: int, cursor: str | None, target: ApiTarget, as_json: bool
) -> None:
    """List policies, oldest first."""
    wanted = None if enabled is None else str(enabled).lower()
    items, more = run_on(target, lambda api: api.list(POLICIES, limit, project=project, enabled=wanted, cursor=cursor))
    hint = f"More policies: `{target.command('policies', 'ls', '--cursor', more or '')}`"
    print_list(items, more, LISTED, as_json=as_json, empty="No policies.", hint=hint)


add_show(
    policies,
    POLICY,
    _id,
    "Show a policy and its next run.",
    partial(facts_of, without=("max_retry", "rule_set")),  # fields that are also shown under their better-known names
)
add_rm(policies, POLICY, _id, "Remove a policy. A running job finishes.")


@policies.command(epilog="Example: shoal policies results pol_01hr2v8k3m4n5p6q --limit 1")
@_id
@limit_option(20)
@cursor_option
@api_options
def results(policy_id: str, limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """List the results of a policy, newest first."""
    path = at(f"{POLICY}/results", policy_id)
    items, more = run_on(target, lambda api: api.list(path, limit, cursor=cursor))
    if as_json:
        print_json({"items": items, "next": more})
        return
    rows = [_result(one) for one in items]
    print_table(["fetched", "job", "state", "hash", "what"], rows, "No run has ended yet.")
    if not rows and cursor is None:
        note("No results yet. A site policy has crawls instead of results; see `shoal policies show`.")
    if more is not None:
        note(f"More results: `{target.command('policies', 'results', policy_id, '--cursor', more)}`")


@policies.command(epilog="Example: shoal policies diff pol_01hr2v8k3m4n5p6q")
@_id
@click.argument("before", required=False, metavar="[JOB]")
@click.argument("after", required=False, metavar="[JOB]")
@api_options
def diff(policy_id: str, before: str | None, after: str | None, target: ApiTarget, as_json: bool) -> None:
    """Show what changed between two results of a policy. Give the ids of their jobs; the default is the last two
    successful results."""
    path, sides = at(f"{POLICY}/diff", policy_id), {"from": before, "to": after}
    found = run_on(target, lambda api: api.get(path, **sides))
    if as_json:
        print_json(found)
        return
    rows = [[one["path"], _data(one["from"]), _data(one["to"])] for one in found["changes"]]
    print_table(["path", "from", "to"], rows, "Nothing differs.")
    page = {
        None: "Unknown whether the page changed (a hash is missing)",
        True: "The page changed",
        False: "The page did not change",
    }
    since, until = (to_the_second(found[side]["fetched_at"]) for side in ("from", "to"))
    note(f"{page[found['html_changed']]}, from {since} to {until}.")


def _result(one: dict[str, Any]) -> list[object]:
    return [to_the_second(one["fetched_at"]), one["job_id"], one["state"], one["meta"]["html_hash"], _found(one)]


def _found(result: dict[str, Any]) -> str:
    """Return the data of a result, or the error if there is no data."""
    error = result["meta"]["error"]
    return f"{error['code']}: {error['message']}" if error else _data(result["data"])


def _data(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


@policies.command()
@_id
@api_options
def run(policy_id: str, target: ApiTarget, as_json: bool) -> None:
    """Run a policy now. Its schedule does not change."""
    made = run_on(target, lambda api: api.post(at(f"{POLICY}/run", policy_id)))
    print_answer(
        made,
        f"{made['job_id'] or made['crawl_id']} {'is running already.' if made['duplicate'] else 'is queued.'}",
        as_json=as_json,
    )


@policies.command()
@_id
@api_options
def enable(policy_id: str, target: ApiTarget, as_json: bool) -> None:
    """Enable a policy."""
    _turn(target, policy_id, "enable", as_json)


@policies.command()
@_id
@api_options
def disable(policy_id: str, target: ApiTarget, as_json: bool) -> None:
    """Disable a policy."""
    _turn(target, policy_id, "disable", as_json)


@policies.command(epilog="Example: shoal policies boost --label team=prices --boost 30 --lasts 6h")
@click.option("--url", metavar="URL", help="Change the priority of this URL.")
@click.option("--label", metavar="NAME=VALUE", help="Change the priority of the policies with this label.")
@click.option(
    "--boost", type=float, required=True, metavar="N", help="Points to add; a negative number lowers the priority."
)
@click.option("--lasts", metavar="D", help="End the change after this long, such as 6h.  [default: 24h]")
@api_options
def boost(target: ApiTarget, as_json: bool, **given: Any) -> None:
    """Raise or lower the priority of a URL or a label for a while. Existing jobs keep their priority."""
    form = {name: value for name, value in given.items() if value is not None}
    if ("url" in form) == ("label" in form):
        raise UsageError("A boost is for a URL or for a label", "give either --url or --label")
    made = run_on(target, lambda api: api.post("/api/v1/signals", form), existing=False)
    words = f"{made['subject']} has {made['boost']:+g} points until {to_the_second(made['until'])}."
    print_answer(made, words, as_json=as_json)


@policies.command("priority-rules")
@api_options
def list_priority_rules(target: ApiTarget, as_json: bool) -> None:
    """List the rules that set the priority of jobs. SHOAL_PRIORITY_RULES replaces them."""
    items = run_on(target, lambda api: api.get("/api/v1/priority-rules"), existing=False)["items"]
    print_list(items, None, {name: name for name in ("fact", "per", "limit")}, as_json=as_json)


@policies.command("import", epilog="Example: shoal policies import urls.csv --skip-bad")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--skip-bad", is_flag=True, help="Skip invalid lines. By default, the file is rejected if any line is invalid."
)
@api_options
def take_in(file: Path, skip_bad: bool, target: ApiTarget, as_json: bool) -> None:
    """Create policies from a .csv or .jsonl file, all or none. Invalid lines are listed."""
    from shoal.plan.importer import MAX_BAD

    kind = _kind_of(file)
    lines = read_file(str(file), "policies")
    problems = _look_through(lines, kind)
    if problems and not skip_bad:
        _print_invalid(problems)
        least = "at least " if len(problems) == MAX_BAD else ""
        raise InvalidInput(
            f"{file}", f"has {least}{plural(len(problems), 'invalid line')}", "correct the lines, or use --skip-bad"
        )
    bad = "skip" if skip_bad else "refuse"
    if sys.stderr.isatty():
        note("Storing …")
    report = run_on(target, lambda api: api.upload(f"{POLICIES}/import", lines, kind, bad=bad), existing=False)
    if as_json:
        print_json(report)
        return
    _print_invalid([(problem["line"], problem["problem"]) for problem in report["problems"]])
    left = f"; {plural(report['bad'], 'invalid line')} skipped" if report["bad"] else ""
    print(f"Created {plural(report['made'], 'policy', 'policies')}{left}.")


@policies.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--project", metavar="NAME", help="Select policies of this project.")
@with_api_target
def export(file: Path, project: str | None, target: ApiTarget) -> None:
    """Write all policies to a .csv or .jsonl file for `import`."""
    from shoal.plan.policy_file import COLUMNS

    kind = "csv" if _kind_of(file) == KINDS[".csv"] else "jsonl"
    try:
        out = PartFile(str(file))
        check_replace(str(file), partial(may_replace, str(file), COLUMNS), may_overwrite(), called="FILE")
        text = run_on(target, lambda api: api.download(f"{POLICIES}/export", format=kind, project=project))
        out.begin()
    except BadConfig as error:
        raise error.called("FILE") from None
    Path(out.locations).chmod(OWNER_ONLY)
    out.write([text])
    out.complete()
    note(f"Wrote {file}. It contains headers and cookies in plain text; only you can read it.")


def _turn(target: ApiTarget, policy_id: str, verb: str, as_json: bool) -> None:
    policy = run_on(target, lambda api: api.post(at(f"{POLICY}/{verb}", policy_id)))
    print_answer(policy, f"{policy['id']} is {verb}d.", as_json=as_json)


def _form(given: dict[str, Any]) -> dict[str, Any]:
    more = dict(map(_read_field, given.pop("more")))
    form = {name: value for name, value in given.items() if value not in (None, ())}
    if "labels" in form:
        form["labels"] = dict(map(ADDED["labels"].read_text, form["labels"]))
    if "rule_set" in form:
        form["rule_set"] = read_rules_file(form["rule_set"])
    return form | {name: _json_of(name, text) for name, text in more.items()}


def _read_field(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise InvalidInput("--set", f"{shorten(text)!r} has no value", "write it as FIELD=JSON, such as jitter=5m")
    return name, value


def _json_of(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text.lstrip()[:1] in ("{", "["):
            problem = f"{shorten(text)!r} for {name} is not JSON ({error})"
            fix = 'quote names and text, such as crawl_config={"depth": 2}'
            raise InvalidInput("--set", problem, fix) from None
        return text  # plain text, so that users need not quote it


def _kind_of(file: Path) -> str:
    kind = KINDS.get(file.suffix.lower())
    if kind is None:
        raise UsageError(f'"{file}" has an unknown extension', "use .csv or .jsonl")
    return kind


def _look_through(lines: bytes, kind: str) -> list[tuple[int, str]]:
    """Validate the lines locally, with a progress bar, so that errors are shown before anything is sent. Stop after
    `MAX_BAD` invalid lines."""
    from io import StringIO

    from shoal.plan.importer import MAX_BAD
    from shoal.plan.policy_file import read_csv, read_json_lines

    text = StringIO(lines.decode("utf-8-sig", "surrogateescape"), newline="")
    rows = read_csv(text) if kind == KINDS[".csv"] else read_json_lines(text)
    with click.progressbar(
        rows, lines.count(b"\n"), "Reading", file=sys.stderr, hidden=not sys.stderr.isatty(), update_min_steps=1000
    ) as bar:
        return list(islice(((row.line, row.problem) for row in bar if row.problem), MAX_BAD))


def _print_invalid(problems: Iterable[tuple[int, str]]) -> None:
    listed = list(problems)
    for line, problem in listed[:20]:
        note(f"line {line}: {problem}")
    if len(listed) > 20:
        note(f"… and {plural(len(listed) - 20, 'line')} more")


LISTED: Columns = {
    "id": "id",
    "when": lambda policy: policy["frequency"] or policy["cron"],
    "next run": lambda policy: policy["next_run_at"] or ("-" if policy["enabled"] else "disabled"),
    "last success": "last_success_at",
    "stale": lambda policy: "yes" if policy["freshness"]["stale"] else "",
    "what": lambda policy: policy["url"] or policy["seeds"][0],
}
