"""`shoal webhooks`: manage the receivers of events and their deliveries."""

from typing import Any

import click

from shoal.base.errors import UsageError
from shoal.base.text import plural
from shoal.cli.api_client import ApiTarget, at, run_on
from shoal.cli.completion import id_argument
from shoal.cli.output import (
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
    state_option,
)
from shoal.cli.root import CommandGroup
from shoal.events.webhook import DeliveryState, WebhookState
from shoal.observe.logs import note

WEBHOOKS = "/api/v1/webhooks"
WEBHOOK = f"{WEBHOOKS}/{{}}"
NOT_ACCEPTED = 1  # exit code

_id = id_argument("webhook_id")


@click.group(cls=CommandGroup)
def webhooks() -> None:
    """Send events to HTTP endpoints."""


@webhooks.command(epilog="Example: shoal webhooks add https://core.example.com/shoal --event crawl.job.*")
@click.argument("url", metavar="URL")
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="TYPE",
    help="Send only events of this type. Repeatable.  [default: all]",
)
@click.option("--secret", metavar="SECRET", help="Secret that signs the deliveries.  [default: generated]")
@api_options
def add(url: str, events: tuple[str, ...], secret: str | None, target: ApiTarget, as_json: bool) -> None:
    """Send events to URL. The signing secret is printed once."""
    body = {"url": url, "events": list(events)} | ({"secret": secret} if secret else {})
    _print_secret(run_on(target, lambda api: api.post(WEBHOOKS, body), existing=False), as_json)


@webhooks.command("ls")
@api_options
def list_webhooks(target: ApiTarget, as_json: bool) -> None:
    """List webhooks."""
    items = run_on(target, lambda api: api.get(WEBHOOKS))["items"]
    if as_json:
        print_json({"items": items})
    else:
        rows = [[one["id"], _state(one), ", ".join(one["events"]) or "all", one["url"]] for one in items]
        print_table(["id", "state", "events", "url"], rows, "No webhooks.")


def _rows(webhook: dict[str, Any]) -> list[tuple[str, str]]:
    return facts_of(webhook | {"events": webhook["events"] or "all"})


add_show(webhooks, WEBHOOK, _id, "Show a webhook and the state of its queue.", _rows)
add_rm(webhooks, WEBHOOK, _id, "Remove a webhook and its queue.")


@webhooks.command()
@_id
@api_options
def enable(webhook_id: str, target: ApiTarget, as_json: bool) -> None:
    """Enable a webhook. Events that it missed are delivered now."""
    _change(target, webhook_id, {"enabled": True}, as_json)


@webhooks.command()
@_id
@api_options
def disable(webhook_id: str, target: ApiTarget, as_json: bool) -> None:
    """Disable a webhook. Undelivered events are kept."""
    _change(target, webhook_id, {"enabled": False}, as_json)


@webhooks.command()
@_id
@api_options
def rotate(webhook_id: str, target: ApiTarget, as_json: bool) -> None:
    """Replace the signing secret. For a day, deliveries are signed with both the old and the new secret."""
    _print_secret(run_on(target, lambda api: api.post(at(f"{WEBHOOK}/rotate", webhook_id))), as_json)


@webhooks.command()
@_id
@api_options
def test(webhook_id: str, target: ApiTarget, as_json: bool) -> int:
    """Send a signed test event to a webhook. The exit code is 1 if the webhook does not accept it."""
    outcome = run_on(target, lambda api: api.post(at(f"{WEBHOOK}/test", webhook_id)))
    print_answer(outcome, _outcome(outcome), as_json=as_json)
    return 0 if outcome["delivered"] else NOT_ACCEPTED


@webhooks.command()
@_id
@state_option(DeliveryState, "Show only deliveries in this state.")
@limit_option()
@cursor_option
@api_options
def deliveries(
    webhook_id: str, state: str | None, limit: int, cursor: str | None, target: ApiTarget, as_json: bool
) -> None:
    """List deliveries, newest first."""
    path = at(f"{WEBHOOK}/deliveries", webhook_id)
    items, more = run_on(target, lambda api: api.list(path, limit, state=state, cursor=cursor))
    columns = ("event_id", "event_type", "state", "attempts", "status", "next_at", "error")
    print_list(items, more, {name.replace("_", " "): name for name in columns}, as_json=as_json, empty="No deliveries.")


@webhooks.command(epilog="Example: shoal webhooks replay ID --since 2026-03-01T09:00:00Z --until 2026-03-01T12:00:00Z")
@_id
@click.option("--event", "event_id", metavar="ID", help="Replay this event.")
@click.option("--since", metavar="TIME", help="Replay events from this time on.")
@click.option("--until", metavar="TIME", help="Replay events before this time.")
@api_options
def replay(webhook_id: str, target: ApiTarget, as_json: bool, **which: str | None) -> None:
    """Deliver events again, with the same ids."""
    body = {name: value for name, value in which.items() if value}
    if not body or ("since" in body) != ("until" in body):
        raise UsageError("No events are selected", "give --event, or both --since and --until")
    response = run_on(target, lambda api: api.post(at(f"{WEBHOOK}/replay", webhook_id), body))
    print_answer(response, f"{plural(response['replayed'], 'event')} will be sent again.", as_json=as_json)


def _change(target: ApiTarget, webhook_id: str, change: dict[str, Any], as_json: bool) -> None:
    webhook = run_on(target, lambda api: api.patch(at(WEBHOOK, webhook_id), change))
    print_answer(webhook, f"{webhook['id']} is {_state(webhook)}.", as_json=as_json)


def _print_secret(webhook: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    print(webhook["secret"], flush=True)
    note(f"Signing secret of {webhook['id']}. It is not shown again.")


def _outcome(test: dict[str, Any]) -> str:
    took = f"after {test['duration_seconds']:.2f} s"
    if test["delivered"]:
        return f"Accepted with {test['status']} {took}."
    return f"Not accepted {took}: {test['error'].rstrip('.')}."


def _state(webhook: dict[str, Any]) -> str:
    state = WebhookState.of(enabled=webhook["enabled"], failing=webhook["failing_since"] is not None)
    return f"{state} ({webhook['reason']})" if state is WebhookState.DISABLED else state.value
