"""The root command: the table of commands, global flags and error reporting.

A command is imported only when it is called. It raises a `ShoalError` or returns its exit code.
"""

import errno
import json
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from shoal import __version__
from shoal.base.errors import BackendUnavailable, BadConfig, InvalidInput, ShoalError, StorageFull, UsageError
from shoal.base.extras import Extra, is_installed, require
from shoal.base.machine import NO_SPACE
from shoal.base.text import clean, nearest, shorten

INTERRUPTED = 130
UNWRITABLE = (errno.EBADF, errno.EIO)  # stdout was opened for reading only, or its terminal no longer exists
FLAG_OF = {  # settings that have a flag
    "DATABASE_URL": "--store",
    "SHOAL_LISTEN": "--listen",
    "SHOAL_RENDERER_LISTEN": "--listen",
    "SHOAL_SCREENSHOTS": "--screenshots",
    "SHOAL_SERVER": "--server",
    "SHOAL_TOKEN": "--token",
    "SHOAL_TOKEN_FILE": "--token-file",
    "store": "--store",  # its name in the library, which some commands use
}
FLAGS_ELSEWHERE = {  # what users of other tools write, without dashes
    **dict.fromkeys(("port", "host", "bind"), "--listen"),
    **dict.fromkeys(("every", "interval", "schedule"), "--frequency"),
}


HARMFUL = frozenset(
    {
        *("stop", "rm", "cancel", "cancel-group", "purge", "revoke", "disable", "rotate", "drain", "clear"),
        "restart-browser",
    }
)
"""Commands that end, remove or invalidate something. They are suggested only for an obvious typing mistake."""
MIN_TYPO_LENGTH, LONG_WORD = 6, 8  # letters


@dataclass(frozen=True, slots=True)
class LazyCommands:
    """The location of a command, its line in `shoal --help`, and the extra without which it cannot be imported."""

    where: str
    description: str
    extra: Extra | None = None

    def load(self) -> click.Command:
        if self.extra is not None and not is_installed(self.extra):
            return _without_extra(self.extra, self.description)
        module, _, name = self.where.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


def _without_extra(extra: Extra, description: str) -> click.Command:
    """Return a command that accepts any arguments and raises the error about the missing extra."""

    @click.command(help=description, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="...")
    @click.pass_context
    def command(context: click.Context, words: Sequence[str]) -> None:
        require(extra, f"`{context.command_path}`")

    return command


COMMANDS: dict[str, LazyCommands] = {
    "crawl": LazyCommands("shoal.cli.crawl:crawl", "Crawl a site in this process."),
    "fetch": LazyCommands("shoal.cli.fetch:fetch", "Fetch one page, and print its content."),
    "shell": LazyCommands("shoal.cli.fetch:shell", "Open a Python prompt with a page."),
    "audit": LazyCommands("shoal.cli.audit:audit", "Crawl a site and report what is wrong with it.", "audit"),
    "serve": LazyCommands(
        "shoal.cli.operate:serve", "Run the controller: REST API, console and background chores.", "server"
    ),
    "worker": LazyCommands("shoal.cli.operate:worker", "Run a worker that executes jobs from the store.", "server"),
    "bot": LazyCommands("shoal.cli.bot:bot", "Run a bot that pulls page jobs from a server."),
    "renderer": LazyCommands("shoal.cli.operate:renderer", "Run the render service: Chromium for workers.", "server"),
    "crawls": LazyCommands("shoal.cli.crawls:crawls", "Start, list and manage crawls."),
    "jobs": LazyCommands("shoal.cli.jobs:jobs", "Create page jobs for single URLs; list and manage jobs."),
    "nodes": LazyCommands("shoal.cli.nodes:nodes", "List nodes, and pause, drain or resize them."),
    "analyses": LazyCommands("shoal.cli.analyses:analyses", "List analyses of crawls and their findings."),
    "explain": LazyCommands(
        "shoal.cli.explain:explain", "Explain why a URL or job waits or failed, or a node gets jobs."
    ),
    "robots": LazyCommands("shoal.cli.explain:robots", "Check what a host's robots.txt allows, and by which rule."),
    "rules": LazyCommands("shoal.cli.rules:rules", "Test a rule set, or extract data again from stored bodies."),
    "policies": LazyCommands("shoal.cli.policies:policies", "Schedule recurring crawls of pages and sites."),
    "webhooks": LazyCommands("shoal.cli.webhooks:webhooks", "Send events to HTTP endpoints."),
    "tokens": LazyCommands("shoal.cli.tokens:tokens", "Create, list and revoke API tokens; show the audit log."),
    "gates": LazyCommands("shoal.cli.gates:gates", "Store the rules that a crawl must meet."),
    "events": LazyCommands("shoal.cli.events:events", "List events, or follow them."),
    "stats": LazyCommands("shoal.cli.events:stats", "Show jobs per hour, back-pressure and bots."),
    "db": LazyCommands("shoal.cli.operate:db", "Show or upgrade the schema of the store."),
    "config": LazyCommands("shoal.cli.operate:config", "Show the effective settings and their sources."),
    "demo": LazyCommands("shoal.cli.demo:demo", "Crawl a built-in demo site and show it in the console.", "server"),
    "completion": LazyCommands("shoal.cli.completion:completion", "Print a completion script for bash, zsh or fish."),
}

OTHER_NAMES: Mapping[str, str] = {
    "after": "cursor",
    "delay-seconds": "delay",
    "max-retry": "retries",
    "max-seconds": "max-time",
    "most": "limit",
    "processes": "workers",
    "rule-set": "rules",
    "since": "recrawl-of",
    "add": "create",
    "create": "add",
}
"""Additional names of options and commands, from the API, the library and earlier versions. A name is accepted wherever
the option or command exists and the name has no other meaning. `Form.other_names` has the additional names in
requests."""
ARGUMENTS: Mapping[str, str] = {"after": "cursor", "scope": "key", "seeds": "urls", "url": "urls"}
"""Request fields whose parameter has a different name. All other parameters have the name of their field."""


class Command(click.Command):
    """A command that accepts additional names of its options, names the flag in errors about a field, and groups the
    options in its help. `sections` has the parameters of each group by its title. Options that are in no group come
    last."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._sections = sections or {}

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        return super().make_context(*args, **{"token_normalize_func": self._name_of} | more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for param in self.params:
            if isinstance(param, WaitOption):
                args = param.with_value(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click does not set `ctx` if the value of an option is missing
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidInput as error:
            raise error.called(self._flag_of) from None

    def _flag_of(self, field: str) -> str:
        """Return the flag or the argument for a field of a request. Return the field if there is no parameter for
        it."""
        name = field.partition("[")[0]
        known = {param.name: param for param in self.params}
        param = known.get(name) or known.get(ARGUMENTS.get(name, ""))
        return field if param is None else _called(param)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        for title, names in self._sections.items():
            rows = [records.pop(name) for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if records:
            with formatter.section("Options"):
                formatter.write_dl(list(records.values()))

    def _name_of(self, name: str) -> str:
        own = {flag.lstrip("-") for param in self.params for flag in param.opts}
        other = OTHER_NAMES.get(name, name)
        return other if other in own and name not in own else name  # errors quote the name that the user wrote


class WaitOption(click.Option):
    """The option `--wait`, with or without a duration. A following word is its value only if it is a duration, so that
    arguments may follow the option."""

    DURATION = re.compile(r"inf|[0-9.]+ *[a-z]*")

    def __init__(self, *args: Any, bare: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self._bare = bare

    def with_value(self, args: Sequence[str]) -> list[str]:
        """Return the arguments with the default duration added wherever the option has no value."""
        end = list(args).index("--") if "--" in args else len(args)
        following = [*args[1:end], ""]
        return [
            f"{word}={self._bare}" if word in self.opts and not self.DURATION.fullmatch(following[place]) else word
            for place, word in enumerate(args[:end])
        ] + list(args[end:])


class CommandGroup(click.Group):
    """A group that accepts additional names of its commands, and suggests the nearest name for an unknown one."""

    command_class = Command

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.commands.get(cmd_name) or self.commands.get(OTHER_NAMES.get(cmd_name, ""))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            path = ctx.command_path
            raise UsageError(f'"{path} {shorten(name)}" is not a command', _hint(name, path, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


class RootCommand(CommandGroup):
    """The top group: imports the commands of the table only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return COMMANDS[cmd_name].load() if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.description) for name, lazy in COMMANDS.items()])


@click.group(cls=RootCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="shoal %(version)s", help="Show the version and exit.")
@click.option("--debug", is_flag=True, help="Show tracebacks; allowed anywhere on the command line.")
def shoal(debug: bool) -> None:
    """Shoal, a self-hosted crawl platform."""


def run(words: Sequence[str]) -> int:
    """Run one command line. It raises no error, except `BrokenPipeError` if the reader of stdout has closed the
    pipe."""
    words, debug = _without_debug(words)
    warnings.showwarning = _show_warning
    try:
        with shoal.make_context("shoal", words or ["--help"]) as context:
            outcome = shoal.invoke(context)
        sys.stdout.flush()  # flush here, so that an error in writing the last lines is an error of the command
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if debug and not isinstance(error, click.ClickException):
            traceback.print_exc()
        return tell(_by_flag(error, words), as_json="--json" in words)
    return outcome if isinstance(outcome, int) else 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _without_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    end = list(words).index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return kept + list(words[end:]), len(kept) < end


def _by_flag(error: BaseException, words: Sequence[str]) -> BaseException:
    """Name the flag instead of the setting in an error, if a flag set the value."""
    if isinstance(error, BackendUnavailable) and _is_given("--store", words):
        error.message = error.message.replace("DATABASE_URL", "--store")
    if not isinstance(error, BadConfig):
        return error
    flag = FLAG_OF.get(str(error.facts["key"]).partition(" ")[0])
    return error.called(flag) if flag is not None and _is_given(flag, words) else error


def _is_given(flag: str, words: Sequence[str]) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def tell(error: BaseException, as_json: bool) -> int:
    """Print the error in one sentence on stderr; return the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _to_stderr(error.format_message())
        return error.exit_code
    if (known := _known(error)) is not None:
        from shoal.observe.logs import as_called

        _say(known.problem(), as_called(clean(known.message)), as_json)
        return known.response.exit_code
    if isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE:
        code, message = "output_failed", f"the output cannot be written ({error.strerror})."
    else:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        code, message = "unexpected", f"{what}; please run the command again with --debug and report the traceback."
    _say({"title": code, "status": 500, "code": code, "detail": message}, clean(message), as_json)
    return 1


def _known(error: BaseException) -> ShoalError | None:
    """Return the `ShoalError` for an exception: the first one in a group, or one made from an error of click."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_known, error.exceptions)), None)
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return StorageFull("the disk or the output")
    return error if isinstance(error, ShoalError) else None


def _usage(error: click.ClickException) -> UsageError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "shoal"
    if isinstance(error, click.NoSuchOption) and context is not None and (meant := _flag_for(error, context.command)):
        return UsageError(f"No such option '{error.option_name}' (did you mean '{meant}'?)", f'see "{path} --help"')
    if isinstance(error, click.NoSuchOption) and error.option_name == "--id" and path.endswith(" crawls add"):
        return UsageError("No such option '--id'", "the id is generated and printed, and --label adds your own name")
    if isinstance(error, click.BadParameter) and error.param is not None and (accepted := _accepted(error.param.type)):
        given, is_wrong, _ = error.message.partition(" is not ")
        if is_wrong:
            return UsageError(f"{_called(error.param)} cannot be {given}", f"give {accepted}")
    problem = re.sub(r" (?:Did you mean|\(Did you mean) (.*)\?\)?$", r" (did you mean \1?)", error.format_message())
    problem = problem.partition(". Choose from:")[0]
    return UsageError(problem.replace(". (", " (").rstrip("."), f'see "{path} --help"')


def _called(param: click.Parameter) -> str:
    """Return the name of a parameter for users: the flag, or the argument as it is written in the help."""
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name.strip("[].…")


def _accepted(kind: click.ParamType[Any]) -> str | None:
    """Describe the values that a parameter of this type accepts, if they can be described."""
    match kind:
        case click.Choice(choices=[*most, last]):
            return f"{', '.join(most)} or {last}"
        case click.IntRange(min=least, max=None):
            return f"a whole number of {least} or more"
        case click.IntRange(min=least, max=largest):
            return f"a whole number from {least} to {largest}"
        case click.types.IntParamType():
            return "a whole number"
        case click.types.FloatParamType():
            return "a number"
        case _:
            return None


def _flag_for(error: click.NoSuchOption, command: click.Command) -> str | None:
    """Return the flag that the user means with an unknown flag, if the unknown flag is the name of a crawl field or a
    name that other tools use."""
    from shoal.cli.options import FLAGS
    from shoal.crawl.crawl import CrawlConfig

    name = error.option_name.lstrip("-").replace("-", "_")
    known = {flag for param in command.params for flag in param.opts}
    meant = FLAGS_ELSEWHERE.get(name)
    if meant in known:
        return meant
    field = CrawlConfig.also_called.get(name, name)
    return FLAGS[field].name if field in FLAGS and FLAGS[field].name in known else None


def _say(problem: dict[str, Any], message: str, as_json: bool) -> None:
    cleaned = {name: clean(value) if isinstance(value, str) else value for name, value in problem.items()}
    _to_stderr(json.dumps(cleaned) if as_json else f"shoal: {message}")


def _to_stderr(text: str) -> None:
    try:
        print(text, file=sys.stderr)
    except (OSError, ValueError):  # stderr is closed, so the exit code is the only message
        return


def _hint(name: str, path: str, known: Iterable[str]) -> str:
    """Return the fix for an unknown command: the nearest command, or the help. A command that ends or removes something
    is only suggested for an obvious typing mistake."""
    close = None if name in ("help", "version") else nearest(name.lower(), known)
    if close is None or (close in HARMFUL and not _is_typo(name.lower(), close)):
        return f'see "{path} --help" for all commands'
    return f'the nearest one is "{path} {close}"'


def _is_typo(written: str, meant: str) -> bool:
    """Return whether a word is a mistyped command: one letter differs, or two in a long word. Short words are excluded,
    because too many words are similar to them: `shop` need not mean `stop`."""
    if len(meant) < MIN_TYPO_LENGTH or abs(len(written) - len(meant)) > 2:
        return False
    return _distance(written, meant) <= (1 if len(meant) < LONG_WORD else 2)


def _distance(one: str, other: str) -> int:
    """Return the edit distance: insertions, deletions, substitutions and swaps of neighbouring letters."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, target in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != target))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == target:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]
