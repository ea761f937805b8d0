"""`shoal completion`: completion scripts for shells. They complete commands, options, choices and ids."""

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from shoal.cli.api_client import ApiTarget, run_on
from shoal.cli.root import Command

C = TypeVar("C", bound=Callable[..., Any])
VARIABLE = "_SHOAL_COMPLETE"  # the scripts set this variable to `bash_complete`, `zsh_complete` or `fish_complete`
LIMIT_SECONDS = 2
MOST = 200  # maximum number of ids to complete from
LISTS: Mapping[str, str] = {
    "analysis_id": "/api/v1/analyses",
    "crawl_id": "/api/v1/crawls",
    "group_id": "/api/v1/groups",
    "job_id": "/api/v1/jobs",
    "name": "/api/v1/gates",
    "node_id": "/api/v1/nodes",
    "policy_id": "/api/v1/policies",
    "token_id": "/api/v1/tokens",
    "webhook_id": "/api/v1/webhooks",
}
"""By parameter name: the list that contains its ids. All other parameters are ids of crawls."""


def id_argument(name: str, metavar: str = "ID", *, required: bool = True) -> Callable[[C], C]:
    """Add an argument that is an id, which shells can complete."""
    return click.argument(name, metavar=metavar, required=required, shell_complete=complete_id)


def complete_id(context: click.Context, param: click.Parameter, written: str) -> list[CompletionItem[str]]:
    """Return the newest ids that begin with the written text, from the store or server that the command line names."""
    target = ApiTarget(*(context.params.get(flag) for flag in ("store", "server", "token", "token_file")))
    path = LISTS.get(param.name or "", LISTS["crawl_id"])
    items, _ = run_on(target, lambda api: api.list(path, MOST))
    found = [(str(item.get("id") or item["name"]), str(item.get("state") or "")) for item in items]
    return [CompletionItem(name, help=state) for name, state in found if name.startswith(written)]


class _OrFiles(ShellComplete):
    """Completes file names where there is nothing else to complete, as shells do by default."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        return super().get_completions(args, incomplete) or [CompletionItem(incomplete, type="file")]


class Bash(_OrFiles, BashComplete):
    def source(self) -> str:
        return ShellComplete.source(self)  # `BashComplete.source` would start bash to check its version


class Zsh(_OrFiles, ZshComplete):
    pass


class Fish(_OrFiles, FishComplete):
    pass


SHELLS: Mapping[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


@click.command(
    cls=Command,
    epilog='Example: eval "$(shoal completion bash)" in ~/.bashrc; in fish: shoal completion fish | source',
)
@click.argument("shell", type=click.Choice(list(SHELLS)), metavar="SHELL")
def completion(shell: str) -> None:
    """Print a completion script for SHELL: bash, zsh or fish. It completes commands, options, values, and the ids in
    the store."""
    print(_shell(shell).source())


def complete(instruction: str) -> None:
    """Print the completions that the script of a shell requests. Print nothing if there are none, on any error, and
    after `LIMIT_SECONDS`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(LIMIT_SECONDS)
    try:
        print(_shell(instruction.partition("_")[0]).complete(), flush=True)
    except Exception:  # no error may appear in the line that the user is typing
        return
    finally:
        signal.alarm(0)


def _shell(name: str) -> ShellComplete:
    from shoal.cli.root import shoal

    return SHELLS[name](shoal, {}, "shoal", VARIABLE)
