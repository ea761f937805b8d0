"""What users see stays as it was recorded: the API, the help of the commands, the shape of their JSON, exit codes.

`SHOAL_TEST_RECORD=1 .venv/bin/python -m pytest tests/acceptance/test_freeze.py` records an intended change.
"""

import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click
import pytest

from shoal.cli.root import shoal as root_command
from shoal.serve.api import GROUPS
from shoal.serve.endpoint import public_endpoints
from shoal.serve.openapi import document
from shoal.serve.renderer import RendererApi
from tests.support.control_fleet import control_plane, wait_for_node
from tests.support.fleet import Fleet, clean_environment
from tests.support.processes import run_shoal
from tests.support.site import Site

RECORDED = Path(__file__).parents[1] / "freeze"
STORE = Path(__file__).parents[1] / "stores" / "0007.db.gz"
DEADLINE_SECONDS = 120
TEXTS = ("title", "description", "examples", "example")


def compare(name: str, found: dict[str, Any], *, partly: bool = False) -> None:
    """Compare with the record, or with the part of it that was found again."""
    file = RECORDED / f"{name}.json"
    if os.environ.get("SHOAL_TEST_RECORD") and not partly:
        file.write_text(lines_of(found))
    recorded = json.loads(file.read_text())
    was = lines_of({key: recorded[key] for key in recorded if key in found} if partly else recorded)
    assert not list(unified_diff(was.splitlines(), lines_of(found).splitlines(), "as it was", "now", lineterm=""))


def lines_of(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_paths_parameters_and_shapes_of_the_api_are_the_same() -> None:
    compare("api", {name: api(groups) for name, groups in (("serve", GROUPS), ("renderer", [RendererApi]))})


def api(groups: Any) -> dict[str, Any]:
    """Return one line for each part of the document, with the components in their places, without names and texts."""
    whole = document(list(public_endpoints(groups)))
    lines: dict[str, Any] = {}
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            facts = {
                "parameters": sorted(f"{one['in']} {one['name']} {one['required']}" for one in operation["parameters"]),
                "security": operation["security"],
            }
            for one in operation["parameters"]:
                facts[f"{one['in']} {one['name']}"] = flat(one["schema"], whole)
            for status, response in {"request": operation.get("requestBody", {}), **operation["responses"]}.items():
                facts[status] = {
                    kind: flat(content["schema"], whole) if "problem" not in kind else "Problem"
                    for kind, content in response.get("content", {}).items()
                }
            facts["body is required"] = operation.get("requestBody", {}).get("required")
            lines[f"{method.upper()} {path}"] = facts
    return lines


def flat(schema: Any, whole: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Return a schema with its references resolved, as a short text."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "itself" if name in inside else flat(whole["components"]["schemas"][name], whole, (*inside, name))
    kept = {name: value for name, value in schema.items() if name not in TEXTS}
    for name in ("anyOf", "oneOf", "allOf"):
        if name in kept:
            kept[name] = sorted((flat(one, whole, inside) for one in kept[name]), key=json.dumps)
    if "properties" in kept:
        needed = kept.pop("required", ())
        kept["properties"] = {
            f"{name}{'' if name in needed else '?'}": flat(one, whole, inside)
            for name, one in kept["properties"].items()
        }
    for name in ("items", "additionalProperties"):
        if isinstance(kept.get(name), dict):
            kept[name] = flat(kept[name], whole, inside)
    if not kept.get("items"):
        kept.pop("items", None)
    if "enum" in kept:
        kept.pop("type", None)
        kept["enum"] = sorted(kept["enum"], key=str)
    return kept


def test_the_help_of_every_command_is_the_same() -> None:
    compare("help", dict(helps(root_command, "shoal")))


def helps(command: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    names = ["-h", "--help"]
    context = click.Context(command, info_name=path, terminal_width=100, max_content_width=100, help_option_names=names)
    command._help_option = None  # click keeps the one of another context
    yield path, command.get_help(context).splitlines()
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found, f"{path} {name}")


# Command lines with `--json` on a copy of a stored store, in this order; `{policy}` is the id of a policy.
ON_A_STORE = """
crawls ls
crawls ls --state nowhere
crawls show finished
crawls show interrupted
crawls show {held}
crawls show nowhere
crawls logs finished
crawls politeness finished
crawls wait finished
crawls watch finished
crawls diff finished {audited}
crawls export finished --output pages.jsonl
crawls dump interrupted --output dump.jsonl
crawls load dump.jsonl --id loaded --allow-private-seeds
crawls start {held}
crawls pause {held}
crawls set {held} --delay 0.5
crawls resume {held}
crawls stop {held}
crawls stop {held}
crawls retry {held}
crawls retry finished --all
crawls release interrupted *
crawls rm loaded
crawls stop loaded
crawls rm loaded
crawls add http://127.0.0.1:9/ --hold
crawls add ftp://127.0.0.1/
explain url finished http://127.0.83.7:8383/
explain url finished http://127.0.83.7:8383/nowhere
explain job {pending}
explain job {done}
jobs ls
jobs show {pending}
jobs show {done}
jobs groups
jobs results answered
jobs cancel {pending}
jobs cancel {pending}
jobs retry {pending}
jobs cancel-group waiting
jobs add http://127.0.0.1:9/ --group new
jobs quota set default 5
jobs quota set project:default 5
jobs quota ls
jobs quota rm project:default
jobs quota rm project:default
jobs purge --state done
analyses ls
analyses show {analysis}
policies ls
policies show {policy}
policies set {policy} --frequency 12h
policies disable {policy}
policies enable {policy}
policies run {policy}
policies results {policy}
policies diff {policy}
policies add http://127.0.0.1:9/ --frequency 24h
policies add http://127.0.0.1:9/
policies import policies.jsonl
policies rm {policy}
webhooks ls
webhooks show {webhook}
webhooks deliveries {webhook}
webhooks disable {webhook}
webhooks enable {webhook}
webhooks test {webhook}
webhooks replay {webhook} --since 2026-01-01T00:00:00Z --until 2027-01-01T00:00:00Z
webhooks replay {webhook}
webhooks rotate {webhook}
webhooks rm {webhook}
webhooks add http://127.0.0.1:9/ --event crawl.*
webhooks add http://127.0.0.1:9/ --event nowhere
tokens ls
tokens log
tokens show {token}
tokens create --role viewer --name reader
tokens revoke {token}
tokens create --role admin --name second
tokens revoke {token}
nodes ls
nodes show nowhere
db current
db upgrade
config show
robots test {site}
rules test rules.toml {site}
crawl {site} --depth 1 --speed max
crawl http://127.0.0.1:9/ --speed max
audit {site} --depth 1 --speed max
audit {site} --depth 1 --speed max --gate gate.toml
crawl
crawl {site} --depth -1
crawl {site} --detph 1
nowhere
"""
READ = re.compile(r"^\w+ (?:ls|show|log|groups|deliveries|current)(?: .*)?$", re.M)  # whatever came before
ON_A_FLEET = """
nodes ls
nodes show worker-1
nodes set worker-1 --max-concurrency 3
nodes pause worker-1
nodes resume worker-1
nodes restart-browser worker-1
explain node worker-1
jobs add http://a.example/ http://b.example/ http://c.example/ --js
bot verify --capability js
nodes drain worker-1
"""
NOT_RUN = {"demo"}  # prints its address and the summary of a crawl


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=8) as site:
        yield site


def outcomes(table: str, names: dict[str, str], folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """Run the commands in their order; return the exit code of each, and the shape of what it printed."""
    found = {}
    for line in table.strip().splitlines():
        words = [word.format(**names) for word in line.split()]
        done = run_shoal(*words, "--json", cwd=folder, env=clean_environment(folder) | env, timeout=DEADLINE_SECONDS)
        assert "Traceback" not in done.stderr, done.stderr
        key = line if line not in found else f"{line} (again)"
        found[key] = [done.returncode, *shapes(done.stdout), *(shapes(done.stderr) if done.returncode else ())]
    return found


def shapes(printed: str) -> list[Any]:
    objects = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return shape(objects) if objects else []


def shape(value: Any) -> Any:
    """Return the keys of a value and the types below them. A list has the shapes of its elements, each once."""
    if isinstance(value, dict):
        return (
            {"code": value["code"]}
            if "detail" in value and "code" in value
            else {name: shape(one) for name, one in value.items()}
        )
    if isinstance(value, list):
        return [json.loads(one) for one in sorted({json.dumps(shape(one), sort_keys=True) for one in value})]
    return type(value).__name__


@pytest.mark.parametrize("partly", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["reads", "all"])
def test_the_json_and_the_exit_codes_of_commands_are_the_same(tmp_path: Path, site: Site, partly: bool) -> None:
    (tmp_path / "shoal.db").write_bytes(gzip.decompress(STORE.read_bytes()))
    (tmp_path / "rules.toml").write_text('[fields.title]\ncss = "title"\n')
    (tmp_path / "gate.toml").write_text('[[rules]]\nmetric = "pages"\nop = ">"\nthreshold = 100\n')
    (tmp_path / "policies.jsonl").write_text('{"url": "http://127.0.0.1:9/a", "frequency": "24h"}\n')
    env = {"DATABASE_URL": f"sqlite:///{tmp_path}/shoal.db", "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}

    def listed(*words: str) -> list[dict[str, Any]]:
        done = run_shoal(
            *words, "--json", cwd=tmp_path, env=clean_environment(tmp_path) | env, timeout=DEADLINE_SECONDS
        )
        assert done.returncode == 0, done.stderr
        items: list[dict[str, Any]] = json.loads(done.stdout).get("items", [])
        return items

    listed("db", "upgrade")
    crawls, jobs = listed("crawls", "ls"), listed("jobs", "ls", "--kind", "page")
    names = {
        "site": site.address,
        "held": next(one["id"] for one in crawls if one["state"] == "pending"),
        "audited": next(one["id"] for one in crawls if one["state"] == "completed" and one["id"] != "finished"),
        "pending": next(one["id"] for one in jobs if one["state"] == "pending"),
        "done": next(one["id"] for one in jobs if one["state"] == "done"),
        "analysis": listed("analyses", "ls")[0]["id"],
        "policy": next(one["id"] for one in listed("policies", "ls") if "frequency" in one),
        "webhook": listed("webhooks", "ls")[0]["id"],
        "token": listed("tokens", "ls")[0]["id"],
    }
    table = "\n".join(READ.findall(ON_A_STORE)) if partly else ON_A_STORE
    compare("commands", outcomes(table, names, tmp_path, env), partly=partly)


@pytest.mark.exhaustive
def test_the_json_of_commands_about_a_running_fleet_is_the_same(tmp_path: Path, sqlite_url: str) -> None:
    with Fleet(tmp_path, sqlite_url, **control_plane(SHOAL_CHROMIUM="missing")) as fleet:
        fleet.controller()
        fleet.worker("worker-1")
        wait_for_node(fleet, "worker-1", state="connected")
        env = {"SHOAL_SERVER": f"http://127.0.0.1:{fleet.port}"}
        compare("fleet", outcomes(ON_A_FLEET, {}, tmp_path, env))


def test_every_command_that_prints_json_is_recorded() -> None:
    recorded = ON_A_STORE + ON_A_FLEET
    for path, lines in helps(root_command, "shoal"):
        name = path.removeprefix("shoal ")
        if any(line.startswith("  --json ") for line in lines) and name not in NOT_RUN:
            assert f"\n{name}" in recorded, name
