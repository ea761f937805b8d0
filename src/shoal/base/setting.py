"""One setting: its name, default, limits and description, and the kinds of values."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Self, get_args, get_origin

from msgspec import Struct

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
    read_milliseconds,
    read_networks,
    read_node_id,
    read_path,
    read_pause,
    read_proxies,
    read_service_url,
    read_size,
    read_store_url,
    read_text,
    read_whole,
    read_yes_or_no,
    show,
    show_size,
)
from shoal.base.query_params import SESSION, TRACKING, reader_of

Default = Callable[[Mapping[str, Any]], Any]


class SettingKind(Struct, frozen=True):
    """A kind of setting: its name, a description of valid values with an example, and the parser.

    `read` raises `ValueError` with the end of a sentence.
    """

    name: str
    accepts: str
    read: Callable[[object], Any]


class Setting(Struct):
    """One setting of a section. `shown`: the default in words.

    If the default is a function, it gets the values of the settings that precede this one in the section.
    """

    env: str
    default: object | Default
    description: str
    secret: bool = False
    shown: str | None = None
    ge: Any = None
    le: Any = None
    min_length: int = 0
    max_length: int | None = None
    kind: SettingKind = None  # type: ignore[assignment]  # set by the section, from the annotation

    def read(self, value: object) -> Any:
        """Parse a value; raise `ValueError` with the end of a sentence if it is invalid."""
        found = self.kind.read(value)
        if self.max_length is not None and len(found) > self.max_length:
            raise ValueError("is too long")
        if self.min_length and len(found) < self.min_length:
            raise ValueError("is too short")
        if (self.ge is not None and found < self.ge) or (self.le is not None and found > self.le):
            raise ValueError("is out of range")
        return found

    def written(self, value: object) -> str:
        """Return a value as it is written in an environment variable."""
        if self.kind.name == "milliseconds" and isinstance(value, timedelta):
            return str(value // timedelta(milliseconds=1))
        if self.kind.name == "size" and isinstance(value, int):
            return show_size(value)
        return show(value)

    @property
    def default_words(self) -> str:
        """The default value as it is shown to people."""
        return str(self.default) if self.shown is None else self.shown

    @property
    def limits(self) -> str:
        least, most = (None if limit is None else self.written(limit) for limit in (self.ge, self.le))
        if least and most:
            return f"{least} to {most}"
        return f"at least {least}" if least else ""

    @property
    def accepts(self) -> str:
        return f"{self.kind.accepts}, {self.limits}" if self.limits else self.kind.accepts


def setting(env: str, default: object | Default, description: str, **more: Any) -> Any:
    """Define a setting in the body of a section. The annotation of the attribute determines the type and the kind."""
    return Setting(env, default, description, **more)


class SettingsSection:
    """The settings of one package, read only. The attributes are the values; `settings` holds the definitions."""

    settings: ClassVar[dict[str, Setting]]
    given: frozenset[str]  # the names of the settings that were set explicitly

    def __init_subclass__(cls) -> None:
        cls.settings = {name: value for name, value in vars(cls).items() if isinstance(value, Setting)}
        for name, one in cls.settings.items():
            one.kind = kind_of(cls.__annotations__[name])

    def __init__(self, **given: Any) -> None:
        """Take values by name, as text or already parsed; all other settings get their defaults."""
        unknown = given.keys() - self.settings.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {}
        for name, one in self.settings.items():
            chosen = given.get(name, one.default)
            values[name] = one.read(chosen(values) if callable(chosen) else chosen)
        self.__dict__.update(values, given=frozenset(given))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read only")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        shown = (f"{name}={vars(self)[name]!r}" for name, one in self.settings.items() if not one.secret)
        return f"{type(self).__name__}({', '.join(shown)})"

    def but(self, **changes: Any) -> Self:
        """Return this section with some values changed."""
        return type(self)(**({name: getattr(self, name) for name in self.given} | changes))


def kind_of(annotation: Any) -> SettingKind:
    """Return the kind in an annotation; a `Literal` becomes its own kind."""
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, SettingKind):
            return mark
    assert get_origin(annotation) is not None, f"{annotation} has no setting kind"
    words = [str(word) for word in get_args(annotation)]
    return SettingKind(" / ".join(words), f"{', '.join(words[:-1])} or {words[-1]}", partial(_read_choice, words))


def _read_choice(words: list[str], value: object) -> str:
    word = value.strip().lower() if isinstance(value, str) else value
    if word not in words:
        raise ValueError("is not an allowed value")
    return str(word)


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
    SettingKind("name", "at most 63 letters, digits and hyphens, such as crawler-1", read_node_id),
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
    SettingKind("networks", "networks separated by commas, such as 127.0.0.0/8,10.1.0.0/16", read_networks),
]
Proxies = Annotated[
    tuple[LabelledProxy, ...],
    SettingKind(
        "proxies",
        "LABEL=ADDRESS, separated by commas, such as eu=http://user:password@proxy:3128,us=socks5h://host:1080;"
        " if only bots know the address of a proxy, write LABEL= without an address",
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
RedisUrl = Annotated[
    str,
    SettingKind("address", "redis://host:6379/0", partial(read_service_url, schemes=("redis", "rediss", "unix"))),
]
HttpUrl = Annotated[
    str,
    SettingKind("address", "http://host:port or https://host", partial(read_service_url, schemes=("http", "https"))),
]
FilePath = Annotated[Path | None, SettingKind("path", "the path of a file", read_path)]
Folder = Annotated[Path, SettingKind("path", "the path of a folder", read_path)]
NAMES = (
    "names separated by commas, such as ref,src_*; a + before the list adds its names to the built-in list;"
    " `none` for an empty list"
)
Tracking = Annotated[tuple[str, ...], SettingKind("names", NAMES, reader_of(TRACKING))]
Session = Annotated[tuple[str, ...], SettingKind("names", NAMES, reader_of(SESSION))]
BodyPlace = Annotated[
    str, SettingKind("path or bucket", "the path of a folder, or s3://bucket/prefix", read_body_place)
]
