"""Logs and metrics: one event is one line, nothing secret or unprintable passes, every signal is worded."""

import importlib
import io
import json
import logging
import pkgutil
import string
import time
import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.base.clock import FakeClock
from shoal.base.settings import LogSettings
from shoal.base.signals import ChoreDone, ChoreFailed, Signal
from shoal.base.text import clean, names_a_secret, redact, visible
from shoal.observe.log_messages import MESSAGES, LogLevel, log_line
from shoal.observe.logs import QUIET, Bridge, Logs, capture_stdlib
from shoal.observe.metrics import Metrics
from shoal.queue.queue import JobsLeased

CLOCK = FakeClock(datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC))
SECRET = "s3cr3tV4lu3"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def logs_to(stream: io.StringIO, **settings: Any) -> Logs:
    return Logs(LogSettings(**settings), CLOCK, stream)


def said(message: str = "hello", level: LogLevel = LogLevel.INFO, **facts: Any) -> str:
    stream = io.StringIO()
    logs_to(stream, level="debug").say(level, "test", message, **facts)
    return stream.getvalue()


def line(**facts: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(**facts))
    return found


class How(StrEnum):
    FAILED = "failed"


class JobMoved(Signal, frozen=True, kw_only=True):
    """The facts of the queue's signal, so that this file needs no queue."""

    job_id: str = "job_1"
    kind: str = "crawl"
    run_id: str | None = "crl_1"
    to: How = How.FAILED
    how: How = How.FAILED
    reason: str | None = None
    error: str | None = "it broke"


def all_signals() -> list[type[Signal]]:
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(_below(Signal), key=lambda kind: kind.__name__)


def _below(kind: type[Signal]) -> Iterator[type[Signal]]:
    for below in kind.__subclasses__():
        if below.__module__.startswith("shoal."):
            yield below
        yield from _below(below)


def test_every_signal_of_the_tree_is_worded_with_its_own_facts() -> None:
    for kind in all_signals():
        assert kind.__name__ in MESSAGES, f"{kind.__module__}.{kind.__name__} has no wording in observe/log_messages.py"
        facts = set(kind.__struct_fields__)
        wording = MESSAGES[kind.__name__]
        for message in wording.messages():
            assert {name for _, name, _, _ in string.Formatter().parse(message) if name} <= facts, kind
        assert wording.of is None or wording.of in facts


@pytest.mark.parametrize(
    ("holder", "node"), [("vm/12", "vm"), ("vm/12/pages/13", "vm"), ("local/vm/12/99", "vm"), ("bot/tok_a/b1", "tok_a")]
)
def test_a_holder_is_reported_with_its_node(holder: str, node: str) -> None:
    facts = log_line(JobsLeased(kind="page", holder=holder, count=1, waited_seconds=0.0)).facts
    assert (facts["node_id"], facts["holder"]) == (node, holder)


def test_no_two_signals_share_a_name() -> None:
    # By where they are defined: a dataclass with slots is created twice, and the first class may still exist.
    places = {(kind.__module__, kind.__name__) for kind in all_signals()}
    assert len(places) == len({name for _, name in places})


def test_a_line_is_one_json_object_with_the_promised_fields_first() -> None:
    text = said("found it", url="http://a/", extra=1, job_id="job_1", crawl_id="crl_1")
    assert text.endswith("\n")
    assert list(json.loads(text)) == [
        "timestamp",
        "level",
        "event",
        "msg",
        "job_id",
        "crawl_id",
        "url",
        "extra",
    ]
    assert json.loads(text)["timestamp"] == "2026-01-02T03:04:05.678Z"


def test_a_signal_becomes_a_line_in_the_words_of_its_case() -> None:
    stream = io.StringIO()
    logs_to(stream).listen(JobMoved())
    found = json.loads(stream.getvalue())
    assert (found["level"], found["event"]) == ("error", "job_moved")
    assert found["msg"] == "crawl job failed permanently: it broke"
    assert found["crawl_id"] == found["correlation_id"] == "crl_1"
    assert "run_id" not in found
    assert "reason" not in found


def test_lines_below_the_level_are_not_written() -> None:
    stream = io.StringIO()
    logs = logs_to(stream, level="warning")
    logs.listen(ChoreDone(chore="janitor", did="swept"))
    logs.say(LogLevel.INFO, "test", "hello")
    assert stream.getvalue() == ""
    logs.listen(ChoreFailed(chore="janitor", error="store away", failures=1, retry_in_seconds=0.5))
    assert "janitor failed, retrying in 0.5 s: store away" in stream.getvalue()


def test_a_signal_nobody_worded_is_reported_under_its_own_name() -> None:
    class TideTurned(Signal, frozen=True, kw_only=True):
        height: int

    found = log_line(TideTurned(height=3))
    assert (found.event, found.message, found.facts) == ("tide_turned", "tide turned", {"height": 3})


def test_a_terminal_gets_short_readable_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    logs_to(terminal).say(LogLevel.WARNING, "test", "store away", job_id="job_1", why="two words", where="store")
    assert "\x1b[33mWARNING\x1b[0m store away" in terminal.getvalue()
    assert 'job_id=job_1 why="two words"' in terminal.getvalue()
    assert "where=" not in terminal.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    logs_to(terminal).say(LogLevel.WARNING, "test", "hello")
    assert "\x1b" not in terminal.getvalue()


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    logs_to(Full()).say(LogLevel.ERROR, "test", "hello")
    closed = io.StringIO()
    closed.close()
    logs = Logs(LogSettings(format="json"), CLOCK, closed)
    logs.say(LogLevel.ERROR, "test", "hello")


@pytest.fixture
def borrowed_logging() -> Iterator[None]:
    """The loggers of the process, restored after the test."""
    loggers = [logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.error", *QUIET)]
    before = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    logging.captureWarnings(False)
    for each, handlers, level, propagate in before:
        each.handlers[:] = handlers
        each.setLevel(level)
        each.propagate = propagate


@pytest.mark.usefixtures("borrowed_logging")
def test_messages_of_libraries_are_logged_to_the_same_stream() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(Bridge(logs_to(stream)))
    logger.propagate = False
    try:
        raise ValueError(f"password={SECRET}\nsecond line")
    except ValueError:
        logger.exception("request %s failed", f"http://me:{SECRET}@host/")
    logger.warning("%d wrong", "format")
    first, second = stream.getvalue().splitlines()
    assert SECRET not in first
    assert json.loads(first)["logger"] == "uvicorn.error"
    assert json.loads(first)["traceback"][0].startswith("Traceback")
    assert "wrong" in json.loads(second)["msg"]


@pytest.mark.usefixtures("borrowed_logging")
def test_capturing_replaces_every_handler() -> None:
    access = logging.getLogger("uvicorn.access")
    access.addHandler(logging.StreamHandler(io.StringIO()))
    stream = io.StringIO()
    capture_stdlib(logs_to(stream))
    access.warning("slow")
    access.info("one of very many")
    logging.getLogger("somebody").info("hi")
    assert [json.loads(each)["msg"] for each in stream.getvalue().splitlines()] == ["slow", "hi"]


LEAKS = [
    "Authorization: Bearer {}",
    "authorization: Basic {}==",
    "{{'Authorization': 'Bearer {}', 'Accept': '*/*'}}",
    '{{"Proxy-Authorization": "Digest username=\\"me\\", response=\\"{}\\""}}',
    "Cookie: session={}; a=b",
    "set-cookie: sid={}; HttpOnly",
    "X-Api-Key: {}",
    "sent Bearer {}",
    "token shl_{} was used",
    "whsec_{}",
    "http://me:{}@host/x",
    "http://{}@host/x",
    "see <https://me:{}@[::1]:8700/>",
    "postgresql://me:pa/ss{}@db/shoal",
    "postgresql://me:p@ss{}@db/shoal",
    "redis://:{}@cache",
    "GET /x?api_key={}&a=b",
    "GET /x?a=b&access_token={}",
    "http://h/?TOKEN={}#x",
    "http://h/?x-amz-signature={}",
    "http://h/?sig={}",
    "http://h/?key={}",
    "client_secret={}",
    "user=me password={} host=db",
    '{{"password": "{}", "user": "me"}}',
    "{{'api_key': '{}'}}",
]


@pytest.mark.parametrize("form", LEAKS)
def test_a_secret_does_not_reach_the_log(form: str) -> None:
    text = form.format(SECRET)
    assert SECRET not in said(text, url=text, deep={"list": [text], text: 1})


@pytest.mark.parametrize("name", ["password", "api_key", "Authorization", "x-auth-token", "cookies", "client_secret"])
def test_a_fact_with_a_secrets_name_is_hidden_whatever_it_holds(name: str) -> None:
    assert names_a_secret(name)
    assert line(**{name: SECRET})[name] == "***"
    assert line(headers={name: [SECRET]})["headers"] == {name: "***"}


@pytest.mark.parametrize(
    "text",
    [
        "https://medium.com/@somebody/a-story",
        "http://host:8080/@x?page=2&sort=key",
        "job_01HZX monkey=1 keyword=shoal author=me",
        "token count: 3",
        "mail somebody@example.org",
    ],
)
def test_innocent_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


nasty = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from("\x00\x07\x08\x1b\r\n\t\x7f\x85\x9b\u2028\u2029\u202e\u2066\u200b\ufeff\ud800"),
    )
)
ALLOWED_FORMAT = {"\u200c", "\u200d"}


def _fools(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in (
        "LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI",
    )  # fmt: skip


@given(nasty, nasty, nasty)
def test_an_event_with_any_text_is_one_line_without_control_characters(message: str, value: str, key: str) -> None:
    text = said(message, url=value, facts={key: [value]})
    assert text.count("\n") == 1
    assert not [char for char in text[:-1] if _fools(char)]
    text.encode("utf-8")
    found = json.loads(text)
    assert not [char for part in (found["msg"], found["url"], *found["facts"]) for char in part if _fools(char)]


def test_a_terminal_line_has_the_time_in_utc_whatever_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        stream = io.StringIO()
        logs_to(stream, format="text").say(LogLevel.INFO, "test", "hello")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert stream.getvalue().startswith(f"{CLOCK.now():%H:%M:%S}Z INFO ")


@given(nasty, nasty)
def test_a_terminal_line_has_no_control_characters_either(message: str, value: str) -> None:
    stream = io.StringIO()
    logs_to(stream, format="text").say(LogLevel.INFO, "test", message, url=value)
    assert not [char for char in stream.getvalue()[:-1] if _fools(char)]


quiet = st.text(st.characters(codec="utf-8", categories=("L", "N", "Zs")), max_size=30)


@given(st.sampled_from(LEAKS), quiet, quiet)
def test_a_secret_does_not_pass_whatever_stands_around_it(form: str, before: str, after: str) -> None:
    assert SECRET not in said(f"{before} {form.format(SECRET)} {after}")


@given(st.sampled_from(LEAKS), st.integers(min_value=16_300, max_value=16_500))
def test_a_secret_cut_in_two_by_the_length_limit_does_not_pass(form: str, length: int) -> None:
    text = said("x" * length + " " + form.format(SECRET))
    assert SECRET[:4] not in text


@given(nasty)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "advice", ["write it as http://[user:password@]host:port", "use postgresql://user:password@host/name."]
)
def test_advice_with_the_words_user_and_password_is_not_taken_for_a_secret(advice: str) -> None:
    assert clean(advice) == advice
    assert SECRET not in clean(f"postgresql://user:password@{SECRET}@host/name")


def test_huge_and_strange_values_stay_short_and_valid() -> None:
    found = line(
        title="x" * 1_000_000,
        many=list(range(100_000)),
        deep=[[[[[[["x"]]]]]]],
        nan=float("nan"),
        infinite=float("inf"),
        raw=b"\xff\x00",
        when=datetime(2026, 1, 1, tzinfo=UTC),
        msg="mine",
    )
    assert len(json.dumps(found)) < 10_000
    assert found["infinite"] == "inf"
    assert (found["msg"], found["msg_"]) == ("hello", "mine")


class PagesSettled(Signal, frozen=True, kw_only=True):
    pages: dict[str, int]
    bytes: dict[str, int]


def test_metrics_count_what_signals_say() -> None:
    metrics = Metrics()
    metrics.listen(JobMoved())
    metrics.listen(JobMoved())
    metrics.listen(PagesSettled(pages={"2xx": 99, "4xx": 1}, bytes={"2xx": 5000}))
    metrics.listen(ChoreDone(chore="janitor", did="nothing that is counted"))
    value = metrics.registry.get_sample_value
    assert value("shoal_jobs_failed_total", {"kind": "crawl"}) == 2
    assert value("shoal_leases_ended_total", {"kind": "crawl", "how": "failed"}) == 2
    assert value("shoal_pages_total", {"status_class": "2xx"}) == 99
    assert value("shoal_page_bytes_total", {"status_class": "2xx"}) == 5000
    assert b"# HELP shoal_jobs_failed_total" in metrics.render()


def test_every_metric_is_shoals_and_two_processes_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.listen(JobMoved())
    assert second.registry.get_sample_value("shoal_jobs_failed_total", {"kind": "crawl"}) is None
    assert all(family.name.startswith("shoal_") for family in first.registry.collect())


def test_every_signal_that_is_counted_is_worded() -> None:
    assert set(Metrics().handlers) <= set(MESSAGES)
