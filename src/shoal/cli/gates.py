"""`shoal gates`: manage the named gates, which judge the analyses of crawls and policies."""

from pathlib import Path
from typing import Any

import click

from shoal.audit.gate import GateRule, parse_gate
from shoal.cli.api_client import ApiTarget, at, run_on
from shoal.cli.completion import complete_id
from shoal.cli.options import read_file
from shoal.cli.output import Columns, add_rm, add_show, api_options, facts_of, print_answer, print_list
from shoal.cli.root import CommandGroup

GATES = "/api/v1/gates"
GATE = f"{GATES}/{{}}"

_name = click.argument("name", metavar="NAME", shell_complete=complete_id)


@click.group(cls=CommandGroup)
def gates() -> None:
    """Store the rules that a crawl must meet. Crawls, policies and analyses refer to them by the name of the gate."""


@gates.command("ls")
@api_options
def list_gates(target: ApiTarget, as_json: bool) -> None:
    """List gates."""
    items = run_on(target, lambda api: api.get(GATES))["items"]
    print_list(items, None, LISTED, as_json=as_json, empty="No gates.")


@gates.command("set", epilog="Example: shoal gates set release gate.toml")
@_name
@click.argument("file", metavar="FILE")
@api_options
def set_gate(name: str, file: str, target: ApiTarget, as_json: bool) -> None:
    """Create a gate from a TOML or JSON file, or replace it. Existing analyses keep their rules."""
    rules = parse_gate(read_file(file, "the rules of a gate").decode("utf-8", "replace"), Path(file).name)
    stored = run_on(target, lambda api: api.put(at(GATE, name), rules.plain()), existing=False)
    print_answer(stored, f"Stored {stored['name']}.", as_json=as_json)


def _condition(rule: dict[str, Any]) -> str:
    fields = ("metric", "op", "threshold", "max_increase")
    words = GateRule(**{name: rule[name] for name in fields}).condition
    return words if rule["severity"] == "error" else f"{words} ({rule['severity']})"


def _rows(gate: dict[str, Any]) -> list[tuple[str, str]]:
    return facts_of(gate, without=("rules",)) + [("Rule", _condition(rule)) for rule in gate["rules"]]


add_show(gates, GATE, _name, "Show the rules of a gate.", _rows)
add_rm(gates, GATE, _name, "Remove a gate. Crawls that refer to the gate get an inconclusive verdict.")


LISTED: Columns = {
    "name": "name",
    "rules": lambda gate: len(gate["rules"]),
    "fails on": lambda gate: ", ".join(gate["fail"]),
    "changed": "changed_at",
}
