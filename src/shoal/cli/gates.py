"""`shoal gates`: manage the named gates, which judge the analyses of crawls and policies."""

from pathlib import Path
from typing import Any

import click

from shoal.audit.gate import GateRule, parse_gate
from shoal.cli.api_client import ApiTarget, at, run_on
from shoal.cli.completion import complete_id
from shoal.cli.options import read_file
from shoal.cli.output import Columns, api_options, facts_of, print_answer, print_list, print_object
from shoal.cli.root import CommandGroup

GATES = "/api/v1/gates"
GATE = f"{GATES}/{{}}"

_name = click.argument("gate", metavar="NAME", shell_complete=complete_id)


@click.group(cls=CommandGroup)
def gates() -> None:
    """Store the rules that a crawl must meet. Crawls, policies and analyses refer to them by the name of the gate."""


@gates.command("ls")
@api_options
def list_gates(target: ApiTarget, as_json: bool) -> None:
    """List gates."""
    items = run_on(target, lambda api: api.get(GATES))["items"]
    print_list(items, None, LISTED, as_json=as_json, empty="No gates.")


@gates.command()
@_name
@api_options
def show(gate: str, target: ApiTarget, as_json: bool) -> None:
    """Show the rules of a gate."""
    print_object(run_on(target, lambda api: api.get(at(GATE, gate))), as_json=as_json, rows=_rows)


@gates.command("set", epilog="Example: shoal gates set release gate.toml")
@_name
@click.argument("file", metavar="FILE")
@api_options
def set_gate(gate: str, file: str, target: ApiTarget, as_json: bool) -> None:
    """Create a gate from a TOML or JSON file, or replace it. Existing analyses keep their rules."""
    rules = parse_gate(read_file(file, "the rules of a gate").decode("utf-8", "replace"), Path(file).name)
    stored = run_on(target, lambda api: api.put(at(GATE, gate), rules.plain()), existing=False)
    print_answer(stored, f"Stored {stored['name']}.", as_json=as_json)


@gates.command()
@_name
@api_options
def rm(gate: str, target: ApiTarget, as_json: bool) -> None:
    """Remove a gate. Crawls that name it get an inconclusive verdict."""
    run_on(target, lambda api: api.delete(at(GATE, gate)))
    print_answer({"name": gate, "removed": True}, f"Removed {gate}.", as_json=as_json)


def _condition(rule: dict[str, Any]) -> str:
    fields = ("metric", "op", "threshold", "max_increase")
    words = GateRule(**{name: rule[name] for name in fields}).condition
    return words if rule["severity"] == "error" else f"{words} ({rule['severity']})"


def _rows(gate: dict[str, Any]) -> list[tuple[str, str]]:
    return facts_of(gate, without=("rules",)) + [("Rule", _condition(rule)) for rule in gate["rules"]]


LISTED: Columns = {
    "name": "name",
    "rules": lambda gate: len(gate["rules"]),
    "fails on": lambda gate: ", ".join(gate["fail"]),
    "changed": "changed_at",
}
