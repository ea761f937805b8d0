"""`shoal bot`: the reference bot, which pulls page jobs from a server without a database, and a conformance check for
servers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shoal.base.clock import SystemClock
from shoal.base.errors import Unauthenticated, UsageError
from shoal.base.machine import on_stop
from shoal.base.settings import Settings
from shoal.base.text import plural
from shoal.cli.api_client import LOGIN_FIX, ApiTarget, token_of, with_server
from shoal.cli.output import json_option, print_json, print_table
from shoal.cli.root import CommandGroup
from shoal.observe.logs import note

if TYPE_CHECKING:
    from shoal.bot.conformance import CheckResult

CAPABILITIES = ("http", "js", "special")


@click.group(cls=CommandGroup, invoke_without_command=True)
@with_server
@click.option("--name", metavar="NAME", help="Name of the bot.  [default: host name and process id]")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100),
    default=4,
    show_default=True,
    metavar="N",
    help="Number of jobs to run at the same time.",
)
@click.option(
    "--capability",
    "capabilities",
    type=click.Choice(CAPABILITIES),
    multiple=True,
    help="Pull only jobs with this capability; js needs Chromium or RENDERER_URL. Repeatable.",
)
@click.pass_context
def bot(
    context: click.Context, target: ApiTarget, name: str | None, concurrency: int, capabilities: tuple[str, ...]
) -> None:
    """Pull page jobs from a server, fetch the pages and push the results. The API token needs the scope bot. SIGTERM
    finishes the jobs in progress and exits; a second SIGTERM exits immediately."""
    if context.invoked_subcommand is not None:
        context.obj = target
        return
    settings = target.settings()
    with _login_explained():
        asyncio.run(_work(settings, name, concurrency, capabilities or ("http",)))


@bot.command()
@with_server
@click.option(
    "--capability",
    type=click.Choice(CAPABILITIES),
    default="http",
    show_default=True,
    help="Use jobs with this capability.",
)
@json_option
@click.pass_context
def verify(context: click.Context, target: ApiTarget, capability: str, as_json: bool) -> int:
    """Check that a server implements the bot API correctly. It pulls three waiting jobs and reports them as failed, so
    run it against a test server, or with a capability whose jobs may fail."""
    before: ApiTarget = context.obj  # the flags may also be given before the word `verify`
    flags = {name: getattr(target, name) or getattr(before, name) for name in ("server", "token", "token_file")}
    with _login_explained():
        checks = asyncio.run(_verify(ApiTarget(**flags).settings(), capability))
    if as_json:
        rules = [{"rule": one.rule, "holds": one.holds, "problem": one.problem} for one in checks]
        print_json({"holds": all(one.holds for one in checks), "rules": rules})
    else:
        print_table(["", "rule", "seen"], [["ok" if one.holds else "NO", one.rule, one.problem] for one in checks])
    return 0 if all(one.holds for one in checks) else 1


@contextmanager
def _login_explained() -> Iterator[None]:
    try:
        yield
    except Unauthenticated:
        raise Unauthenticated(LOGIN_FIX) from None


async def _work(settings: Settings, name: str | None, concurrency: int, capabilities: tuple[str, ...]) -> None:
    from shoal.bot.bot import Bot
    from shoal.bot.fetcher import BotFetcher

    clock = SystemClock()
    server, token = _server_of(settings)
    fetcher = BotFetcher(settings, clock, browser="js" in capabilities)
    bot = Bot(server, token, name=name, capabilities=capabilities, concurrency=concurrency, fetcher=fetcher, tell=note)
    bot.on_job(fetcher.data)
    on_stop(bot.stop)
    note(f"{bot.name} is pulling jobs from {server}")
    try:
        await bot.serve()
    finally:
        note(f"{bot.name} pushed {plural(bot.done, 'result')}.")


async def _verify(settings: Settings, capability: str) -> "list[CheckResult]":
    from shoal.bot.client import BotClient
    from shoal.bot.conformance import ConformanceRun

    wire = BotClient(*_server_of(settings), SystemClock())
    try:
        return await ConformanceRun(wire, capability).run()
    finally:
        wire.close()


def _server_of(settings: Settings) -> tuple[str, str]:
    if not settings.client.server:
        raise UsageError("a bot needs a server", "name it with --server or SHOAL_SERVER")
    return settings.client.server, token_of(settings.client)
