"""`shoal tokens`: create, list and revoke tokens, and show the audit log."""

from typing import Any

import click

from shoal.access.token import ROLES, TokenScope
from shoal.base.text import visible
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on
from shoal.cli.completion import id_argument
from shoal.cli.output import (
    Columns,
    add_show,
    api_options,
    cursor_option,
    limit_option,
    print_answer,
    print_json,
    print_list,
)
from shoal.cli.root import CommandGroup
from shoal.observe.logs import note

TOKENS = "/api/v1/tokens"
LISTED: Columns = {
    "id": "id",
    "state": "state",
    "scopes": lambda token: " ".join(token["scopes"]),
    "expires": "expires_at",
    "last used": "last_used_at",
    "name": "name",
}


@click.group(cls=CommandGroup)
def tokens() -> None:
    """Create, list and revoke API tokens; show the audit log."""


@tokens.command(epilog="Example: shoal tokens create --role admin --name me")
@click.option("--name", required=True, metavar="NAME", help="Name of the person or program that will use the token.")
@click.option("--role", type=click.Choice(list(ROLES)), help="Role of the token: a named set of scopes.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([scope.value for scope in TokenScope]),
    help="Give the token this scope, instead of a role. Repeatable.",
)
@click.option("--node-id", metavar="ID", help="Node that may use the token; required for the role node.")
@click.option("--expires-in", metavar="D", help="Lifetime of the token; for example, `90d`.  [default: never]")
@api_options
def create(target: ApiTarget, as_json: bool, **which: Any) -> None:
    """Create a token. The token is printed once and cannot be shown again."""
    given = {field: value for field, value in which.items() if value}

    async def work(api: ApiClient) -> tuple[dict[str, Any], bool]:
        # Check this before the first token exists: from then on, this request would need a token.
        is_first = not (await api.get(TOKENS, limit=1))["items"]
        return await api.post(TOKENS, given), is_first

    made, is_first = run_on(target, work, existing=False)
    if as_json:
        print_json(made)
        return
    print(made["token"], flush=True)
    note(f"{made['id']} has the scope {', '.join(made['scopes'])}. Store the token safely; it is not shown again.")
    if is_first:
        note("This is the first token: from now on every request to `shoal serve` on this store needs a token.")
        note("Each node and each bot needs its own token: --role node --node-id ID, --role bot.")


@tokens.command("ls")
@limit_option()
@cursor_option
@api_options
def list_tokens(limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """List tokens, newest first, including revoked and expired ones."""
    items, more = run_on(target, lambda api: api.list(TOKENS, limit, cursor=cursor))
    print_list(items, more, LISTED, as_json=as_json, empty="No tokens.")


add_show(
    tokens, f"{TOKENS}/{{}}", id_argument("token_id"), "Show a token's name, scopes and use; never the token itself."
)


@tokens.command()
@id_argument("token_id")
@click.option("--yes", is_flag=True, help="Revoke the token even if it is the last valid admin token.")
@api_options
def revoke(token_id: str, yes: bool, target: ApiTarget, as_json: bool) -> None:
    """Revoke a token. Every controller rejects the token within a few seconds."""
    token = run_on(target, lambda api: api.post(at(f"{TOKENS}/{{}}/revoke", token_id), {"force": yes}))
    print_answer(token, f"{token['id']} ({visible(token['name'])}) is revoked.", as_json=as_json)


@tokens.command()
@click.option("--subject", metavar="ID", help="Show only actions on this token, crawl or job.")
@limit_option()
@cursor_option
@api_options
def log(subject: str | None, limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """Show the audit log of administrative actions, newest first."""
    items, more = run_on(target, lambda api: api.list("/api/v1/audit-log", limit, subject=subject, cursor=cursor))
    print_list(items, more, LOGGED, as_json=as_json, empty="The audit log has no such entries.")


def _facts(entry: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in entry["facts"].items()
        if value is not None
    )


LOGGED: Columns = {"at": "at", "who": "who", "from": "address", "act": "act", "subject": "subject", "facts": _facts}
