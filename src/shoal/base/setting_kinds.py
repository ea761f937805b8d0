"""The kinds of settings, each with its name, a description of its format, and its parser."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from shoal.base.parsing import (
    Address,
    LabelledProxy,
    NamedCommand,
    Network,
    read_address,
    read_address_or_none,
    read_body_place,
    read_commands,
    read_duration,
    read_duration_or_inf,
    read_http_url,
    read_milliseconds,
    read_networks,
    read_node_id,
    read_path,
    read_pause,
    read_proxies,
    read_redis_url,
    read_size,
    read_store_url,
    read_text,
    read_whole,
    read_yes_or_no,
)
from shoal.base.query_params import SESSION, TRACKING, reader_of
from shoal.base.setting import SettingKind

Duration = Annotated[timedelta, SettingKind("duration", "a duration such as 500ms, 10s, 2m or 1h", read_duration)]
Pause = Annotated[timedelta, SettingKind("duration", "a duration such as 500ms, 10s, 2m or 1h", read_pause)]
DurationOrInf = Annotated[
    timedelta, SettingKind("duration or inf", "a duration such as 30s, or inf", read_duration_or_inf)
]
Milliseconds = Annotated[
    timedelta,
    SettingKind("milliseconds", "a whole number of milliseconds such as 5000", read_milliseconds),
]
Size = Annotated[int, SettingKind("size", "a size such as 64KB, 10MB or 1GiB", read_size)]
Whole = Annotated[int, SettingKind("number", "a whole number", read_whole)]
Switch = Annotated[bool, SettingKind("true/false", "true or false", read_yes_or_no)]
Text = Annotated[str, SettingKind("text", "one line of text", read_text)]
NodeName = Annotated[
    str,
    SettingKind("name", "at most 63 letters, digits and hyphens such as crawler-1", read_node_id),
]
Listen = Annotated[
    Address,
    SettingKind("host:port", "HOST:PORT such as 127.0.0.1:8700 or [::1]:8700", read_address),
]
Peer = Annotated[
    Address | None,
    SettingKind("host:port", "HOST:PORT such as controller:50051, or nothing", read_address_or_none),
]
Networks = Annotated[
    tuple[Network, ...],
    SettingKind("networks", "networks separated by commas such as 127.0.0.0/8,10.1.0.0/16", read_networks),
]
Proxies = Annotated[
    tuple[LabelledProxy, ...],
    SettingKind(
        "proxies",
        "LABEL=ADDRESS, separated by commas, such as eu=http://user:password@proxy:3128,us=socks5h://host:1080;"
        " LABEL= without an address is a proxy that only bots have",
        read_proxies,
    ),
]
AnalyzerCommands = Annotated[
    tuple[NamedCommand, ...],
    SettingKind("commands", "NAME=COMMAND, separated by commas, such as spelling=/opt/spell --json", read_commands),
]
StoreUrl = Annotated[
    str,
    SettingKind(
        "store",
        "sqlite:////absolute/file.db, sqlite:///relative/file.db or postgresql://user:password@host/name",
        read_store_url,
    ),
]
RedisUrl = Annotated[str, SettingKind("address", "redis://host:6379/0", read_redis_url)]
HttpUrl = Annotated[str, SettingKind("address", "http://host:port or https://host", read_http_url)]
FilePath = Annotated[Path | None, SettingKind("path", "the path of a file", read_path)]
Folder = Annotated[Path, SettingKind("path", "the path of a folder", read_path)]
NAMES = (
    "names separated by commas such as ref,src_*; prefix with + to add to the built-in list; `none` for an empty list"
)
Tracking = Annotated[tuple[str, ...], SettingKind("names", NAMES, reader_of(TRACKING))]
Session = Annotated[tuple[str, ...], SettingKind("names", NAMES, reader_of(SESSION))]
BodyPlace = Annotated[
    str, SettingKind("path or bucket", "the path of a folder, or s3://bucket/prefix", read_body_place)
]
