"""The command line as a whole: exit codes, messages, and lazy imports."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shoal import __version__
from shoal.base import errors
from shoal.base.clock import SystemClock
from shoal.base.machine import SAME_CTRL_C_SECONDS, on_stop
from shoal.cli import root
from shoal.cli.main import main
from shoal.cli.output import print_json, print_table
from shoal.cli.root import COMMANDS, HARMFUL, LazyCommands, run, shoal

ROOT = Path(__file__).parents[2]
SECRET = "hunter2"

pytestmark = pytest.mark.usefixtures("bare_environment")


def process(*words: str, env: dict[str, str] | None = None, stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(env or {})},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout or "", done.stderr


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> dict[str, BaseException]:
    """A command that raises what is put under `error`."""
    raised: dict[str, BaseException] = {}

    @click.command()
    @click.option("--json", "as_json", is_flag=True)
    def command(as_json: bool) -> None:
        raise raised["error"]

    monkeypatch.setattr(LazyCommands, "load", lambda self: command)
    monkeypatch.setitem(COMMANDS, "broken", LazyCommands("nowhere:command", "Breaks."))
    return raised


def test_the_version_is_answered_without_importing_anything_heavy() -> None:
    code = (
        "import sys; from shoal.cli.main import main; main(['--version']);"
        "heavy = {'click', 'msgspec', 'asyncio', 'starlette', 'json', 're'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == f"shoal {__version__}\n"
    assert done.stderr == "[]\n"


def test_the_package_has_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" in project.get("dynamic", []) or project["version"] == __version__


def test_help_names_every_command_and_imports_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LazyCommands, "load", lambda self: pytest.fail("a command was imported"))
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(name in said and lazy.description in said for name, lazy in COMMANDS.items())


HARMLESS = {
    "diff",
    "report",
    "dump",
    "load",
    "politeness",
    *(
        "crawl",
        "fetch",
        "shell",
        "serve",
        "worker",
        "renderer",
        "bot",
        "crawls",
        "jobs",
        "analyses",
        "audit",
        "explain",
        "robots",
        "rules",
        "policies",
        "webhooks",
        "nodes",
        "node",
        "audit",
        "renderer",
        "politeness",
    ),
    *(
        "tokens",
        "db",
        "config",
        "demo",
        "verify",
        "ls",
        "show",
        "start",
        "resume",
        "retry",
        "set",
        "release",
        "add",
        "logs",
    ),
    *(
        "pause",
        "watch",
        "wait",
        "export",
        "results",
        "groups",
        "quota",
        "url",
        "job",
        "test",
        "apply",
        "diff",
        "run",
        "enable",
    ),
    *("import", "deliveries", "replay", "create", "log", "current", "upgrade"),
    *("gates", "events", "follow", "stats", "completion", "boost", "priority-rules"),
}


def groups_of(path: list[str], command: click.Command) -> Iterator[tuple[list[str], list[str]]]:
    """Every group of commands, by what one writes to get there, with the names in it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        names = command.list_commands(context)
        yield path, names
        for name in names:
            found = command.get_command(context, name)
            assert found is not None
            yield from groups_of([*path, name], found)


GROUPS = list(groups_of([], shoal))


def test_every_command_is_known_to_be_harmful_or_harmless() -> None:
    names = {name for _, names in GROUPS for name in names}
    assert names - HARMLESS - HARMFUL == set()
    assert set() == HARMLESS & HARMFUL


@pytest.mark.parametrize(("path", "names"), GROUPS, ids=[" ".join(path) or "shoal" for path, _ in GROUPS])
def test_no_mistyped_command_is_answered_with_one_that_ends_or_removes_something(
    path: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "open",
        "shop",
        "step",
        "top",
        "stops",
        "sto",
        "rmdir",
        "r",
        "rn",
        "remove",
        "delete",
        "abort",
        "kill",
        "close",
    ]
    words += [
        "finish",
        "end",
        "evoke",
        "provoke",
        "able",
        "enabled",
        "merge",
        "surge",
        "cause",
        "phase",
        "train",
        "canal",
    ]
    for word in words:
        if word not in names:
            assert run([*path, word]) == 2
            said = capsys.readouterr().err
            named = said.rpartition('"')[0].rpartition(" ")[2]
            assert named not in HARMFUL or (word, named) == ("evoke", "revoke"), said


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["crawls", "open"], 'see "shoal crawls --help"'),
        (["help"], 'see "shoal --help" for all commands'),
        (["version"], 'see "shoal --help" for all commands'),
        (["crawls", "help"], 'see "shoal crawls --help" for all commands'),
        (["crawls", "stpo"], 'see "shoal crawls --help"'),
        (["tokens", "revok"], 'the nearest one is "shoal tokens revoke"'),
        (["tokens", "revo"], 'see "shoal tokens --help"'),
        (["jobs", "cancel-gruop"], 'the nearest one is "shoal jobs cancel-group"'),
        (["jobs", "cnacel"], 'the nearest one is "shoal jobs cancel"'),
        (["crawls", "puase"], 'the nearest one is "shoal crawls pause"'),
        (["crawls", "resum"], 'the nearest one is "shoal crawls resume"'),
    ],
)
def test_a_harmful_command_is_suggested_only_for_a_typo_in_a_long_word(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["crwal"], 'the nearest one is "shoal crawl"'),
        (["config", "shwo"], 'the nearest one is "shoal config show"'),
        (["xyzzy"], 'see "shoal --help"'),
        (["config", "show", "--jsn"], "did you mean '--json'?"),
        (["crawls", "add", "http://a.test/", "--id", "x"], "No such option '--id'; the id is generated and printed,"),
        (["config", "show", "more"], 'see "shoal config show --help"'),
        (["crawls", "ls", "--limit"], "Option '--limit' requires an argument; see \"shoal crawls ls --help\""),
        (["--bogus"], 'see "shoal --help"'),
    ],
)
def test_wrong_words_are_reported_with_the_nearest_right_ones(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("shoal: ")
    assert hint in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["crawls", "ls", "--limit", "0"], "--limit cannot be 0; give a whole number from 1 to 1000."),
        (["crawls", "ls", "--limit", "x"], "--limit cannot be 'x'; give a whole number from 1 to 1000."),
        (["jobs", "retry", "--dead", "--limit", "0"], "--limit cannot be 0; give a whole number of 1 or more."),
        (["jobs", "groups", "--state", "new"], "--state cannot be 'new'; give open, completed or cancelled."),
        (["policies", "boost", "--boost", "x"], "--boost cannot be 'x'; give a number."),
        (["jobs", "quota", "set", "project:x", "y"], "N cannot be 'y'; give a whole number."),
        (["completion", "tcsh"], "SHELL cannot be 'tcsh'; give bash, zsh or fish."),
        (["completion"], "Missing argument 'SHELL'; see \"shoal completion --help\"."),
    ],
)
def test_a_wrong_value_is_answered_with_what_its_flag_accepts(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"shoal: {says}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["jobs", "quota", "set", "x", "3"], "KEY cannot be 'x'"),
        (["webhooks", "add", "x"], "URL is not an absolute"),
        (["webhooks", "add", "http://a.example/", "--event", "x"], "--event has 'x'"),
        (["tokens", "create", "--name", "x"], "--role is missing"),
        (["tokens", "create", "--name", "x", "--role", "bot", "--expires-in", "x"], "--expires-in 'x' is not"),
        (["events", "ls", "--cursor", "x"], "--cursor cannot be 'x'"),
        (["policies", "add", "http://a.example/", "--frequency", "x"], "--frequency 'x' is not"),
        (["policies", "add", "http://a.example/", "--frequency", "1h", "--set", "x"], "--set 'x' has no value"),
        (["policies", "add", "http://a.example/", "--frequency", "1h", "--label", "x"], "--label 'x' is not a label"),
        (["jobs", "add", "http://a.example/", "--retries", "100"], "--retries cannot be '100'"),
        (["jobs", "add", "http://a.example/", "--header", "x"], "--header has a value that is not a header"),
    ],
)
def test_a_refused_field_is_named_as_on_the_command_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"sqlite:///{tmp_path}/shoal.db"
    assert main(["db", "upgrade", "--store", store]) == 0
    assert main([*words, "--store", store]) == 2
    assert capsys.readouterr().err.startswith(f"shoal: {says}")


def test_an_unwritable_stderr_does_not_change_the_exit_code() -> None:
    code = 'exec 2<"$1"; exec "$2" -m shoal crawls nope'
    assert subprocess.run(["/bin/sh", "-c", code, "sh", __file__, sys.executable], check=False).returncode == 2


def groups_below(command: click.Command, name: str) -> list[tuple[str, click.Group]]:
    if not isinstance(command, click.Group):
        return []
    inner = [groups_below(one, f"{name} {word}") for word, one in command.commands.items()]
    return [(name, command), *(group for found in inner for group in found)]


def test_advice_can_be_copied_as_it_stands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SHOAL_COMMAND", "./shoal")
    assert main(["crawls", "show", "none"]) == 5
    assert "list them with `./shoal crawls ls`." in capsys.readouterr().err
    assert main(["crwal"]) == 2
    assert 'the nearest one is "./shoal crawl"' in capsys.readouterr().err


def test_a_narrow_terminal_cuts_no_line_about_a_command() -> None:
    for path, group in (one for name in COMMANDS for one in groups_below(COMMANDS[name].load(), name)):
        told = group.get_help(click.Context(group, info_name=path, max_content_width=80, terminal_width=80))
        assert [line for line in told.splitlines() if line.endswith("...") and "Usage" not in line] == [], path


@pytest.mark.parametrize("path", ["crawl", "audit", "crawls add", "policies add"])
def test_the_options_of_a_command_that_crawls_are_in_groups(path: str) -> None:
    command: click.Command = shoal
    for name in path.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name) or pytest.fail(name)
    told = command.get_help(click.Context(command, help_option_names=["--help"]))
    titles = re.findall(r"^(\w+):(?:$| )", told, flags=re.MULTILINE)
    assert titles[:2] == ["Usage", "Scope"]
    assert titles[-1] == "Options"
    assert re.findall(r"--\w+", told.partition("\nOptions:\n")[2].partition("\n\n")[0]) == ["--help"]


def test_the_help_of_a_crawl_shows_the_groups_and_the_defaults() -> None:
    told = " ".join(COMMANDS["crawl"].load().get_help(click.Context(COMMANDS["crawl"].load())).split())
    assert [
        title for title in ("Scope", "Limits", "Politeness", "Content", "Output") if f" {title}: -" not in told
    ] == []
    defaults = ("[default: host]", "[default: no limit]", "[default: obey]", "[default: never]", "[default: generated]")
    assert [default for default in defaults if default not in told] == []


def test_a_group_without_a_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 2
    assert "Usage: shoal config" in capsys.readouterr().err


def test_an_error_of_ours_is_one_sentence_and_its_exit_code(
    broken: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken["error"] = errors.NotFound("crawl", "crl_1\n\x1b[2J", "list them with `shoal crawls ls`")
    assert main(["broken"]) == 5
    assert capsys.readouterr().err == ('shoal: crawl "crl_1␊␛[2J" does not exist; list them with `shoal crawls ls`.\n')


def test_with_json_an_error_is_a_problem_document_on_one_line(
    broken: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken["error"] = errors.BackendUnavailable(f"postgresql://me:{SECRET}@db/x", "refused", "start it")
    assert main(["broken", "--json"]) == 8
    said = capsys.readouterr()
    problem = json.loads(said.err)
    assert said.err.count("\n") == 1
    assert (problem["code"], problem["status"]) == ("backend_unavailable", 503)
    assert SECRET not in said.err


def test_the_first_error_of_ours_in_a_group_is_reported(
    broken: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    inner = ExceptionGroup("inner", [errors.WaitTimedOut("the end", 3)])
    broken["error"] = ExceptionGroup("outer", [ValueError("noise"), inner])
    assert main(["broken"]) == 6
    assert "within 3 s" in capsys.readouterr().err


def test_an_unexpected_error_is_one_sentence_that_asks_for_debug(
    broken: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken["error"] = ZeroDivisionError(f"token shl_{SECRET}\nsecond line")
    assert main(["broken"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("shoal: ZeroDivisionError")
    assert "--debug" in said
    assert "Traceback" not in said
    assert SECRET not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [["--debug", "broken"], ["broken", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_stands(
    words: list[str], broken: dict[str, BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken["error"] = errors.BadConfig("SHOAL_X", "is off", "mend it")
    assert main(words) == 4
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (errors.Interrupted("the crawl", "resume it"), 11),
        (BrokenPipeError(), 141),
        (OSError(28, "No space left on device"), 8),
        (click.exceptions.Exit(3), 3),
        (RecursionError(), 1),
    ],
)
def test_each_end_of_a_command_has_its_exit_code(
    error: BaseException, code: int, broken: dict[str, BaseException]
) -> None:
    broken["error"] = error
    assert main(["broken"]) == code


def test_the_exit_code_that_a_command_returns_is_the_process_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LazyCommands, "load", lambda self: click.Command("demo", callback=lambda: 14))
    assert main(["demo"]) == 14


def test_after_a_double_dash_debug_is_an_argument() -> None:
    assert root._without_debug(["crawl", "--", "--debug"]) == (["crawl", "--", "--debug"], False)
    assert root._without_debug(["crawl", "--debug", "--", "x"]) == (["crawl", "--", "x"], True)


@pytest.mark.parametrize(
    "env",
    [
        {"WORKER_CONCURRENCY": "none"},
        {"SHOAL_LEASE_EXTEND": "9s"},
        {"SHOAL_NOSUCH": "1"},
        {"SHOAL_CONFIG": "/nowhere/shoal.toml"},
        {"DATABASE_URL": f"mysql://me:{SECRET}@db/x"},
    ],
)
def test_bad_settings_end_any_command_with_one_sentence_and_code_4(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["config", "show"]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert SECRET not in said.err


def test_config_show_prints_values_with_their_sources_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKER_CONCURRENCY", "4")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me:{SECRET}@db/x")
    assert main(["config", "show"]) == 0
    table = capsys.readouterr().out
    assert main(["config", "show", "--json"]) == 0
    document = capsys.readouterr().out
    assert "WORKER_CONCURRENCY" in table
    assert json.loads(document)["WORKER_CONCURRENCY"] == {"value": 4, "source": "env"}
    assert json.loads(document)["DATABASE_URL"]["value"] == "postgresql://me:***@db/x"
    assert SECRET not in table + document


def test_a_table_is_plain_and_aligned_when_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "state"], [("crl_1", "running"), ("c", None), ("x\x1b[2J", "a\nb")])
    assert capsys.readouterr().out.splitlines() == [
        "ID     STATE",
        "crl_1  running",
        "c",
        "x␛[2J  a␊b",
    ]


@pytest.mark.parametrize(("no_color", "head"), [("", "\x1b[1mID     SITE\x1b[0m"), ("1", "ID     SITE")])
def test_a_terminal_gets_whole_cells_and_a_bold_head_unless_colours_are_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_color: str, head: str
) -> None:
    for name, value in {"NO_COLOR": no_color, "TERM": "xterm", "COLUMNS": "20"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(["id", "site"], [("crl_1", "https://example.org/a/long/way"), ("海", "y")])
    assert capsys.readouterr().out.splitlines() == [head, "crl_1  https://example.org/a/long/way", "海     y"]


def test_json_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"title": "zwölf\n\x1b[2J", "broken": "\ud800"}
    print_json(value)
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert json.loads(said) == value


def test_real_processes_end_with_the_right_codes_and_without_tracebacks() -> None:
    assert process("--version") == (0, f"shoal {__version__}\n", "")
    code, out, err = process("config", "show", env={"SHOAL_LEESE": "1"})
    assert (code, out) == (4, "")
    assert err == "shoal: SHOAL_LEESE is not a setting; the nearest setting is SHOAL_LEASE.\n"


# A print fails at once without a buffer, and with one when the command ends.
BUFFERING = pytest.mark.parametrize("env", [{"PYTHONUNBUFFERED": ""}, {"PYTHONUNBUFFERED": "1"}], ids=str)
PRINTING = (["config", "show"], ["config", "show", "--json"], ["--version"], ["--help"], ["crawl", "--help"])


@BUFFERING
def test_a_disconnected_reader_is_not_logged_as_an_error(env: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for words in PRINTING:
            assert process(*words, env=env, stdout=writing) == (141, "", ""), words
    finally:
        os.close(writing)


@BUFFERING
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_output_is_reported_in_one_sentence(env: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        for words in PRINTING:
            code, _, err = process(*words, env=env, stdout=full.fileno())
            assert code == 8, words
            assert err.count("\n") == 1, err
            assert "no space left" in err
            assert err.startswith("{" if "--json" in words else "shoal: "), err


@BUFFERING
def test_an_output_that_cannot_be_written_is_reported_in_one_sentence(env: dict[str, str]) -> None:
    said = "shoal: the output cannot be written (Bad file descriptor).\n"
    with Path(os.devnull).open() as read_only:
        for words in (["config", "show"], ["--version"], ["--help"]):
            assert process(*words, env=env, stdout=read_only.fileno()) == (1, "", said), words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--store", "nonsense"], "--store has a value that is not a store URL; set it to sqlite:////"),
        (["--store=sqlite:////proc/no/x.db"], "--store names /proc/no/x.db, whose folder does not exist"),
    ],
)
def test_a_store_that_a_flag_names_is_refused_by_the_name_of_the_flag(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crawls", "ls", *words]) == 4
    told = capsys.readouterr().err
    assert said in told
    assert "DATABASE_URL" not in told


def test_a_store_that_the_environment_names_is_refused_by_the_name_of_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:////proc/no/x.db")
    assert main(["crawls", "ls"]) == 4
    assert "DATABASE_URL names /proc/no/x.db" in capsys.readouterr().err


async def test_two_sigints_within_milliseconds_are_one_ctrl_c() -> None:
    stops: list[int] = []
    second = asyncio.Event()

    def stop() -> None:
        stops.append(1)
        if len(stops) == 2:
            second.set()

    on_stop(stop)
    loop = asyncio.get_running_loop()
    try:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        await SystemClock().sleep(0.3)
        assert stops == [1]
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(30):
            await second.wait()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_ctrl_c_that_is_held_counts_again_after_a_moment() -> None:
    second = asyncio.Event()
    stops: list[float] = []
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stops.append(loop.time())
        if len(stops) == 2:
            second.set()

    on_stop(stop)
    try:
        async with asyncio.timeout(30):
            while not second.is_set():
                os.kill(os.getpid(), signal.SIGINT)
                await SystemClock().sleep(SAME_CTRL_C_SECONDS / 10)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
    assert stops[1] - stops[0] > SAME_CTRL_C_SECONDS
