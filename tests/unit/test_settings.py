"""Settings: their sources, and the error messages for invalid values."""

import os
import pickle
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.errors import BadConfig
from shoal.base.parsing import (
    FOREVER,
    LONGEST,
    Address,
    read_duration,
    read_duration_or_inf,
    read_size,
    show_duration,
    show_size,
)
from shoal.base.query_params import SESSION
from shoal.base.settings import CrawlSettings, QueueSettings, Settings
from shoal.base.settings_loader import CATALOGUE, REMOVED, LoadedSettings, RemovedSetting, load
from shoal.base.text import redact_url, visible
from shoal.cli.main import main

HOME = {"HOME": "/home/somebody"}

SEED_DEFAULTS = {
    "REDIS_URL": "",
    "RENDERER_URL": "",
    "WORKER_CONCURRENCY": "2",
    "WORKER_JOB_ATTEMPTS": "2",
    "WORKER_BACKOFF_MS": "5000",
    "MAX_CONCURRENT_CURL": "15",
    "MAX_CONCURRENT_CHROME": "5",
    "GRPC_ENABLED": "false",
    "GRPC_LISTEN_ADDR": ":50051",
    "GRPC_ANALYZER_ADDR": "",
    "GRPC_HEARTBEAT_INTERVAL": "10s",
    "GRPC_RECONNECT_BACKOFF": "5s",
    "GRPC_MAX_RECONNECT_BACKOFF": "60s",
    "SHOAL_SHUTDOWN_GRACE": "30s",
    "SHOAL_LISTEN": "127.0.0.1:8700",
}

BAD_VALUES = [
    ("SHOAL_DATA_DIR", "~nobody-here/data", "begins with the home folder of an unknown user"),
    ("SHOAL_TRACKING_PARAMS", "a=b", 'contains "a=b"'),
    ("SHOAL_SESSION_PARAMS", "+s*d", 'contains "s*d"'),
    ("WORKER_CONCURRENCY", "0", "out of range"),
    ("WORKER_CONCURRENCY", "two", "not a whole number"),
    ("WORKER_CONCURRENCY", "2.0", "not a whole number"),
    ("WORKER_CONCURRENCY", "9" * 5000, "not a whole number"),
    ("WORKER_JOB_ATTEMPTS", "-1", "out of range"),
    ("WORKER_BACKOFF_MS", "5s", "not a whole number"),
    ("SHOAL_LEASE", "10 moons", "without a valid unit"),
    ("SHOAL_LEASE", "ten seconds", "not a duration"),
    ("SHOAL_LEASE", "0s", "is zero or less"),
    ("SHOAL_LEASE", "-3s", "not a duration"),
    ("SHOAL_LEASE", "inf", "not a duration"),
    ("SHOAL_LEASE", "99999999d", "longer than ten years"),
    ("SHOAL_SHUTDOWN_GRACE", "never", "not a duration"),
    ("SHOAL_MAX_BODY", "10 megs", "without a valid unit"),
    ("SHOAL_MAX_BODY", "big", "not a size"),
    ("SHOAL_ALLOW_NETWORKS", "10.0.0.5/8", "did you mean 10.0.0.0/8?"),
    ("SHOAL_ALLOW_NETWORKS", "10.0.0.0/8, all", 'the entry "all"'),
    ("SHOAL_PROXIES", "http://proxy:3128", "not LABEL=ADDRESS"),
    ("SHOAL_PROXIES", "e u=http://proxy:3128", "not LABEL=ADDRESS"),
    ("SHOAL_PROXIES", "eu=proxy:3128", "an invalid proxy address for eu"),
    ("SHOAL_PROXIES", "eu=ftp://proxy", "an invalid proxy address for eu"),
    ("SHOAL_PROXIES", "eu=http://proxy:port", "invalid host or port"),
    ("SHOAL_PROXIES", "eu=http://a:1,eu=http://b:1", "the same label twice"),
    ("SHOAL_LISTEN", "8700", "has no port"),
    ("SHOAL_LISTEN", "localhost:99999", "above 65535"),
    ("SHOAL_LISTEN", "::1:8700", "IPv6 goes in brackets"),
    ("SHOAL_USER_AGENT", "Me\r\nX-Evil: 1", "control character"),
    ("SHOAL_USER_AGENT", "x" * 501, "too long"),
    ("SHOAL_LOG_LEVEL", "loud", "not an allowed value"),
    ("SHOAL_LANES", "rabbit", "not an allowed value"),
    ("SHOAL_LANES", "redis", "REDIS_URL is not set"),
    ("SHOAL_FRONTIER", "redis", "REDIS_URL is not set"),
    ("GRPC_ENABLED", "maybe", "neither true nor false"),
    ("GRPC_NODE_ID", "node 1", "letters, digits and hyphens"),
    ("RENDERER_URL", "ftp://renderer", "not a valid URL for this setting"),
    ("DATABASE_URL", "mysql://me:hunter2@db/shoal", "not a store URL"),
    ("DATABASE_URL", "sqlite://relative.db", "does not name a file"),
    ("DATABASE_URL", "sqlite:///:memory:", "does not name a file"),
    ("DATABASE_URL", "postgresql://me:hunter2@db:port/shoal", "invalid host or port"),
]

DISAGREEMENTS = [
    ({"SHOAL_LEASE_EXTEND": "5s"}, "SHOAL_LEASE_EXTEND"),
    ({"SHOAL_LEASE": "6s"}, "SHOAL_LEASE_EXTEND"),
    ({"SHOAL_LEASE_SWEEP": "11s"}, "SHOAL_LEASE_SWEEP"),
    ({"SHOAL_STALL_DEADLINE": "5s"}, "SHOAL_LEASE"),
    ({"WORKER_BACKOFF_MS": "5000000"}, "WORKER_BACKOFF_MS"),
    ({"SHOAL_HOST_BACKOFF": "2m"}, "SHOAL_HOST_BACKOFF"),
    ({"GRPC_RECONNECT_BACKOFF": "61s"}, "GRPC_RECONNECT_BACKOFF"),
    ({"SHOAL_CONNECT_TIMEOUT": "61s"}, "SHOAL_CONNECT_TIMEOUT"),
    ({"SHOAL_MAX_BODY": "31MB"}, "SHOAL_MAX_BODY"),
    ({"SHOAL_EVENTS_KEEP_MAX": "1d"}, "SHOAL_EVENTS_KEEP"),
    ({"SHOAL_TLS_KEY": "key.pem"}, "SHOAL_TLS_KEY"),
    ({"SHOAL_TLS_CERT": "cert.pem"}, "SHOAL_TLS_CERT"),
    ({"SHOAL_FRONTIER": "redis"}, "SHOAL_FRONTIER"),
]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(**env: str) -> LoadedSettings:
    return load(env=HOME | env)


def shown(found: LoadedSettings) -> dict[str, str]:
    return {row.env: row.value for row in found.shown()}


def refusal(**env: str) -> str:
    with pytest.raises(BadConfig) as caught:
        loaded(**env)
    assert caught.value.response.exit_code == 4
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_seeds_names_have_the_seeds_defaults() -> None:
    assert {name: CATALOGUE[name].default_words for name in SEED_DEFAULTS} == SEED_DEFAULTS


def test_every_setting_has_a_name_of_ours_or_of_a_seed_and_a_description() -> None:
    for name, entry in CATALOGUE.items():
        assert name.startswith("SHOAL_") or name in SEED_DEFAULTS or name in ("DATABASE_URL", "GRPC_NODE_ID")
        assert entry.description.endswith("."), name


def test_the_defaults_agree_with_each_other() -> None:
    assert Settings().queue.lease == timedelta(seconds=10)


def test_the_store_is_a_file_under_the_data_folder_unless_told_otherwise() -> None:
    assert loaded().settings.database.url == "sqlite:////home/somebody/.local/share/shoal/shoal.db"
    assert loaded(XDG_DATA_HOME="/xdg").settings.database.url == "sqlite:////xdg/shoal/shoal.db"
    assert loaded(XDG_DATA_HOME="not/absolute").settings.database.url.startswith("sqlite:////home/somebody/")
    assert loaded(SHOAL_DATA_DIR="/data").settings.database.url == "sqlite:////data/shoal.db"


def test_flags_win_over_the_environment_that_over_the_file_that_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "given.toml"
    file.write_text('WORKER_CONCURRENCY = 3\nSHOAL_LEASE = "20s"\nSHOAL_QUEUE_POLL = "1s"\n')
    env = HOME | {"WORKER_CONCURRENCY": "4", "SHOAL_LEASE": "30s"}
    found = load({"WORKER_CONCURRENCY": 5, "SHOAL_LISTEN": None}, env, file)
    assert found.settings.work.concurrency == 5
    assert found.settings.queue.lease == timedelta(seconds=30)
    assert found.settings.queue.poll_every == timedelta(seconds=1)
    sources = {name: found.sources[name] for name in ("WORKER_CONCURRENCY", "SHOAL_LEASE", "SHOAL_LISTEN")}
    assert sources == {"WORKER_CONCURRENCY": "flag", "SHOAL_LEASE": "env", "SHOAL_LISTEN": "default"}
    assert found.sources["SHOAL_QUEUE_POLL"] == str(file)


def test_the_file_in_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('SHOAL_ALLOW_NETWORKS = ["127.0.0.0/8", "::1/128"]')
    networks = loaded().settings.egress.allow_networks
    assert networks == (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def test_an_empty_variable_counts_as_unset() -> None:
    assert loaded(WORKER_CONCURRENCY="", SHOAL_LISTEN=" ").sources["WORKER_CONCURRENCY"] == "default"


def test_values_are_converted_to_the_types_of_their_settings() -> None:
    found = loaded(
        SHOAL_SHUTDOWN_GRACE="inf",
        WORKER_BACKOFF_MS="1500",
        SHOAL_LISTEN="[::1]:0",
        SHOAL_MAX_BODY="1.5MiB",
        GRPC_ENABLED="Yes",
        GRPC_ANALYZER_ADDR="controller:50051",
    ).settings
    assert found.work.shutdown_grace == FOREVER
    assert found.queue.backoff == timedelta(milliseconds=1500)
    assert found.serve.listen == Address("::1", 0)
    assert found.egress.max_body_bytes == 1_572_864
    assert found.grpc.enabled
    assert found.grpc.controller == Address("controller", 50051)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("ref, SRC_*", ("ref", "src_*")),
        ("+ref,sid", (*SESSION, "ref")),
        ("+ ref", (*SESSION, "ref")),
        ("none", ()),
        ("*", ("*",)),
    ],
)
def test_a_list_of_parameters_stands_instead_of_the_built_in_one_or_is_added_to_it(
    value: str, names: tuple[str, ...]
) -> None:
    assert loaded(SHOAL_SESSION_PARAMS=value).settings.crawl.session_params == names


def test_a_list_of_parameters_in_the_file_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "shoal.toml").write_text('SHOAL_TRACKING_PARAMS = ["ref", "src_*"]')
    assert loaded().settings.crawl.tracking_params == ("ref", "src_*")


@pytest.mark.parametrize(("name", "value", "problem"), BAD_VALUES)
def test_a_bad_value_is_refused_with_its_name_the_problem_and_the_fix(name: str, value: str, problem: str) -> None:
    message = refusal(**{name: value})
    assert message.startswith(name)
    assert problem in message
    assert "; set it to " in message
    assert len(message) < 400


@pytest.mark.parametrize(("env", "name"), DISAGREEMENTS)
def test_settings_that_disagree_are_refused(env: dict[str, str], name: str) -> None:
    assert refusal(**env).startswith(f"{name} is ")


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    assert refusal(WORKER_CONCURENCY="2").endswith("is not a setting; the nearest setting is WORKER_CONCURRENCY.")
    assert refusal(SHOAL_LISTN=":1") == "SHOAL_LISTN is not a setting; the nearest setting is SHOAL_LISTEN."
    assert "docs/reference/settings.md" in refusal(SHOAL_QQQQQQQ="1")


def test_variables_of_other_programs_are_left_alone() -> None:
    loaded(GRPC_VERBOSITY="debug", WORKER_TIMEOUT="5", WORKER_CONCURRENCY_LIMIT="2", DATABASE_URLS="x", REDIS_URI="x")


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_warns_and_has_no_effect(name: str, tmp_path: Path) -> None:
    with pytest.warns(RemovedSetting, match=f"{name} is no longer a setting: "):
        assert loaded(**{name: "anything"}).settings == loaded().settings
    file = tmp_path / "shoal.toml"
    file.write_text(f'{name} = "anything"\n')
    with pytest.warns(RemovedSetting, match=name):
        load(env={}, toml_path=file)


@pytest.mark.filterwarnings("default")
def test_a_command_names_a_removed_setting_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHOAL_SLOW_PAGE", "1s")
    assert main(["config", "show"]) == 0
    assert capsys.readouterr().err == (
        "warning: SHOAL_SLOW_PAGE is no longer a setting: a page is slow after 2 seconds\n"
    )


def test_reserved_and_foreign_variables_are_left_alone() -> None:
    found = loaded(SHOAL_TEST_POSTGRES="x", SHOAL_PYTHON="python3", SHOAL="x", GRPC_TRACE="all")
    assert set(found.sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("WORKER_CONCURENCY = 2", "nearest setting is WORKER_CONCURRENCY"),
        ("[queue]\nlease = '10s'", "[queue] in "),
        ("WORKER_CONCURRENCY = true", "is not a whole number"),
        ("SHOAL_LEASE = true", "is not a duration"),
        ("WORKER_BACKOFF_MS = 9223372036854775807", "is longer than ten years"),
        ("SHOAL_LEASE = 2026-01-01", "is not a duration"),
        ("SHOAL_ALLOW_NETWORKS = 7", "is not a list of networks"),
        ("WORKER_CONCURRENCY = ", "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_path(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    message = refusal(SHOAL_CONFIG=str(tmp_path / "bad.toml"))
    assert words in message
    assert "bad.toml" in message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(SHOAL_CONFIG=str(tmp_path / "absent.toml"))
    (tmp_path / "huge.toml").write_text("WORKER_CONCURRENCY = 0x" + "f" * 9_000)
    assert "a number of more than 64 bits" in refusal(SHOAL_CONFIG=str(tmp_path / "huge.toml"))
    os.mkfifo(tmp_path / "pipe.toml")
    assert "cannot be read (it is not a regular file)" in refusal(SHOAL_CONFIG=str(tmp_path / "pipe.toml"))
    assert "cannot be read (it has more than 1,000,000 bytes)" in refusal(SHOAL_CONFIG="/dev/zero")
    assert load(env={"SHOAL_CONFIG": "/dev/null"}).sources["WORKER_CONCURRENCY"] == "default"
    assert "is a directory" in refusal(SHOAL_CONFIG=str(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b'SHOAL_USER_AGENT = "\xe9"')
    assert "is not TOML" in refusal(SHOAL_CONFIG=str(tmp_path / "latin.toml"))


def test_a_bad_flag_says_that_it_came_from_the_command_line() -> None:
    with pytest.raises(BadConfig, match=r"SHOAL_LISTEN \(on the command line\) is \"nowhere\""):
        load({"SHOAL_LISTEN": "nowhere"}, HOME)


SECRET = "hunter2"
SECRETS = {
    "DATABASE_URL": f"postgresql://me:{SECRET}@db/shoal?sslpassword={SECRET}",
    "REDIS_URL": f"redis://:{SECRET}@cache:6379/0",
    "RENDERER_URL": f"http://me:{SECRET}@renderer:3000",
    "SHOAL_TOKEN": f"shl_{SECRET}",
    "SHOAL_PROXIES": f"eu=http://me:{SECRET}@proxy:3128,bots=",
}


def test_secrets_are_in_the_settings_but_in_nothing_that_is_printed() -> None:
    found = loaded(**SECRETS)
    assert found.settings.database.url == SECRETS["DATABASE_URL"]
    assert SECRET not in repr(found.shown())
    assert SECRET not in repr(found.settings) + str(found.settings) + repr(found)
    assert shown(found)["DATABASE_URL"] == "postgresql://me:***@db/shoal?sslpassword=***"
    assert shown(found)["SHOAL_PROXIES"] == "eu=http://me:***@proxy:3128,bots="


@pytest.mark.parametrize("name", SECRETS)
def test_a_bad_secret_is_refused_without_being_shown(name: str) -> None:
    assert SECRET not in refusal(**{name: f"{SECRET}\n{SECRETS[name]}"})


_user = st.text("abcXYZ09.-_%", max_size=8)
_password = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20).map(lambda text: text + SECRET)


@given(_user, _password, st.sampled_from(["db", "db:5432/x", "[::1]:1/x?a=b", "db/x?password=hunter2&b=c"]))
def test_no_password_survives_redaction(user: str, password: str, rest: str) -> None:
    assert SECRET not in redact_url(f"postgresql://{user}:{password}@{rest}")


@given(st.timedeltas(min_value=timedelta(milliseconds=1), max_value=LONGEST))
def test_a_shown_duration_reads_back_the_same(duration: timedelta) -> None:
    assert read_duration_or_inf(show_duration(duration)) == duration
    assert read_duration_or_inf(show_duration(FOREVER)) == FOREVER


@given(st.integers(min_value=0, max_value=10**11))
def test_a_shown_size_reads_back_the_same(size: int) -> None:
    assert read_size(show_size(size)) == size


@given(st.text())
def test_any_text_is_a_duration_or_is_refused_in_words(text: str) -> None:
    outcome: object
    try:
        outcome = read_duration(text)
    except ValueError as error:
        outcome = str(error)
    assert timedelta(0) < outcome <= LONGEST if isinstance(outcome, timedelta) else str(outcome).startswith("is ")


@given(st.sampled_from(sorted(CATALOGUE)), st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_any_value_of_any_setting_is_taken_or_refused_in_one_line(name: str, value: str) -> None:
    said = ""
    try:
        loaded(**{name: value})
    except BadConfig as error:
        said = error.message
    assert visible(said) == said


def test_the_speed_profile_decides_unless_somebody_set_a_number() -> None:
    crawl = CrawlSettings()
    assert [crawl.speed_profile(speed).connections for speed in ("slow", "normal", "fast", "max")] == [1, 2, 8, 15]
    assert crawl.speed_profile("fast").delay == timedelta(milliseconds=200)
    assert CrawlSettings(max_concurrent_curl=4).speed_profile("slow").connections == 4
    assert loaded(MAX_CONCURRENT_CURL="15").settings.crawl.speed_profile("slow").connections == 15
    assert crawl.speed_profile("slow", concurrency=30).connections == 30


def test_settings_travel_to_a_child_unchanged() -> None:
    settings = loaded(MAX_CONCURRENT_CURL="7", SHOAL_SHUTDOWN_GRACE="inf").settings
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.crawl.speed_profile("slow").connections == 7


def test_a_slice_refuses_what_it_does_not_know_and_does_not_change() -> None:
    with pytest.raises(TypeError, match="speed"):
        CrawlSettings(speed="max")
    with pytest.raises(AttributeError, match="read only"):
        CrawlSettings().max_links = 3


def test_the_delay_between_attempts_doubles_up_to_a_maximum() -> None:
    settings = QueueSettings(backoff=timedelta(seconds=5), longest_backoff=timedelta(seconds=30))
    delays = [settings.backoff_after(attempts).total_seconds() for attempts in (1, 2, 3, 4, 10_000)]
    assert delays == [5, 10, 20, 30, 30]


def test_variables_that_kubernetes_sets_for_services_are_ignored() -> None:
    injected = {
        "SHOAL_SERVICE_HOST": "10.96.0.7",
        "SHOAL_SERVICE_PORT": "8700",
        "SHOAL_SERVICE_PORT_HTTP": "8700",
        "SHOAL_PORT": "tcp://10.96.0.7:8700",
        "SHOAL_PORT_8700_TCP": "tcp://10.96.0.7:8700",
        "SHOAL_PORT_8700_TCP_PROTO": "tcp",
        "SHOAL_PORT_8700_TCP_PORT": "8700",
        "SHOAL_PORT_8700_TCP_ADDR": "10.96.0.7",
        "SHOAL_WEB_SERVICE_HOST": "10.96.0.8",
        "SHOAL_WEB_SERVICE_PORT_GRPC": "9000",
        "SHOAL_WEB_PORT": "udp://10.96.0.8:9000",
    }
    assert load(env=injected).settings == load(env={}).settings
    for mistake in ({"SHOAL_PORT": "8700"}, {"SHOAL_WEB_SERVICE_PORT": "http"}):
        with pytest.raises(BadConfig, match="is not a setting"):
            load(env=mistake)


def test_a_grace_of_zero_is_accepted_and_json_has_numbers() -> None:
    loaded = load({"SHOAL_BOT_GRACE": "0s"}, env={})
    assert loaded.settings.bots.grace == timedelta(0)
    plain = {row.env: row.plain for row in loaded.shown()}
    assert (plain["WORKER_CONCURRENCY"], plain["GRPC_ENABLED"]) == (2, False)
    assert (plain["SHOAL_BOT_GRACE"], plain["GRPC_HEARTBEAT_INTERVAL"]) == ("0s", "10s")


def test_the_user_agent_carries_a_contact_url() -> None:
    plain, contact = load(env={}).settings.egress, "https://example.com/bot"
    assert load(env={"SHOAL_CONTACT": contact}).settings.egress.user_agent == f"{plain.agent} (+{contact})"
    own = {"SHOAL_CONTACT": contact, "SHOAL_USER_AGENT": "mybot/1"}
    assert load(env=own).settings.egress.user_agent == "mybot/1 (+https://example.com/bot)"
    assert plain.user_agent == plain.agent


def test_a_port_that_is_no_number_is_called_so() -> None:
    assert "which has a port that is not a number" in refusal(SHOAL_LISTEN="localhost:9000x")
