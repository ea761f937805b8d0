"""Parsers and formatters for text that people write: durations, sizes, addresses, networks, URLs.

Parsers raise `ValueError` with the end of a sentence ("is not a duration"); the caller adds the name of the value and
the fix.
"""

import errno
import os
import re
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from shoal.base.text import redact_url, shorten, visible

T = TypeVar("T")

FOREVER = timedelta.max
LONGEST = timedelta(days=3650)

_MICROSECOND = timedelta(microseconds=1)
_UNITS = {
    "": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_AMOUNT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)")
_NODE_ID = re.compile(r"[A-Za-z0-9-]{1,63}")
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*/?")
_COMMAND_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
PROXY_LABEL = r"^[A-Za-z0-9_.-]{1,64}$"
PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")


class Address(NamedTuple):
    """A host and port to listen on or connect to. An empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Network = IPv4Network | IPv6Network


class NamedCommand(NamedTuple):
    """A command line with a name."""

    name: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}={shlex.join(self.words)}"


class LabelledProxy(NamedTuple):
    """A proxy and its label. An empty URL means that only bots know the address of the proxy."""

    label: str
    url: str

    def __str__(self) -> str:
        return f"{self.label}={self.url}"

    def redacted(self) -> "LabelledProxy":
        return LabelledProxy(self.label, redact_url(self.url) if self.url else "")


def read_duration(value: object) -> timedelta:
    """Parse a duration such as `10`, `500ms`, `10s`, `1.5m`, `1h` or `7d`: more than zero, at most ten years. A bare
    number is in seconds."""
    duration = read_pause(value)
    if not duration:
        raise ValueError("is zero or less")
    return duration


def read_pause(value: object) -> timedelta:
    """Parse a duration that may also be `0s`."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = f"{value:f}"
    if not isinstance(value, str):
        raise ValueError("is not a duration")
    return _pause_of(value)


@lru_cache(maxsize=1000)  # a policy file repeats the same few durations
def _pause_of(text: str) -> timedelta:
    match = _AMOUNT.fullmatch(text.strip())
    if not match:
        raise ValueError("is not a duration")
    if match[2] not in _UNITS:
        raise ValueError("is a duration without a valid unit")
    micros = round(Decimal(match[1]) * (_UNITS[match[2]] // _MICROSECOND))
    if micros > LONGEST // _MICROSECOND:
        raise ValueError("is longer than ten years")
    return timedelta(microseconds=micros)


def read_span(text: str, read: Callable[[object], timedelta] = read_duration) -> timedelta:
    """Parse a duration from a request. The error message quotes the text and shows the format."""
    try:
        return read(text)
    except ValueError as error:
        raise ValueError(f"{shorten(text)!r} {error}; write it as 30m, 12h or 7d") from None


def read_duration_or_inf(value: object) -> timedelta:
    """Parse a duration, `0s`, or `inf`."""
    return FOREVER if value == "inf" else read_pause(value)


def read_milliseconds(value: object) -> timedelta:
    """Parse a bare number of milliseconds, as earlier projects wrote it."""
    if isinstance(value, timedelta):
        return value
    milliseconds = read_whole(value)
    if abs(milliseconds) > LONGEST // _UNITS["ms"]:
        raise ValueError("is longer than ten years")
    return timedelta(milliseconds=milliseconds)


def read_size(value: object) -> int:
    """Parse a size: `10MB` (powers of 1000), `10MiB` (powers of 1024), or a bare number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise ValueError("is not a size")
    if match[2].upper() not in _BYTES:
        raise ValueError("is a size without a valid unit")
    return round(Decimal(match[1]) * _BYTES[match[2].upper()])


def read_whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,15}", value.strip()):
        return int(value)
    raise ValueError("is not a whole number")


def read_yes_or_no(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("true", "1", "yes", "on"):
        return True
    if word in ("false", "0", "no", "off"):
        return False
    raise ValueError("is neither true nor false")


def read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    if visible(value) != value:
        raise ValueError("contains a control character")
    return value.strip()


def read_address(value: object) -> Address:
    """Parse `HOST:PORT`, `[IPv6]:PORT` or `:PORT`."""
    if isinstance(value, Address):
        return value
    host, colon, port = read_text(value).rpartition(":")
    if not colon or not port:
        raise ValueError("has no port")
    if not re.fullmatch(r"[0-9]{1,5}", port):
        raise ValueError("has a port that is not a number from 0 to 65535")
    if int(port) > 65535:
        raise ValueError("has a port above 65535")
    return Address(_read_host(host), int(port))


def _read_host(host: str) -> str:
    if not host or _HOST.fullmatch(host):
        return host
    try:
        return str(IPv6Address(host.removeprefix("[").removesuffix("]") if host[0] == "[" else ""))
    except ValueError:
        raise ValueError("has a host that is neither a name nor an address (IPv6 goes in brackets)") from None


def read_address_or_none(value: object) -> Address | None:
    return None if value in (None, "") else read_address(value)


def _read_list(value: object, called: str, read: Callable[[object], T], separator: str = r"[,\s]+") -> tuple[T, ...]:
    if isinstance(value, str):
        value = [part for part in re.split(separator, value) if part.strip()]
    if not isinstance(value, list | tuple):
        raise ValueError(f"is not a list of {called}")
    return tuple(read(part) for part in value)


def read_networks(value: object) -> tuple[Network, ...]:
    return _read_list(value, "networks", _read_network)


def _read_network(part: object) -> Network:
    if isinstance(part, IPv4Network | IPv6Network):
        return part
    try:
        return ip_network(read_text(part))
    except ValueError:
        suggestion = ""
        with suppress(ValueError):
            suggestion = f" (did you mean {ip_network(str(part), strict=False)}?)"
        raise ValueError(f'has the entry "{shorten(part)}", which is not a network{suggestion}') from None


def read_proxies(value: object) -> tuple[LabelledProxy, ...]:
    found = _read_list(value, "proxies", _read_proxy)
    if len({one.label for one in found}) < len(found):
        raise ValueError("has the same label twice")
    return found


def _read_proxy(part: object) -> LabelledProxy:
    """Parse one proxy. Errors name only the label, because the address may contain a password."""
    if isinstance(part, LabelledProxy):
        return part
    label, mark, url = read_text(part).partition("=")
    if not mark or not re.match(PROXY_LABEL, label):
        raise ValueError("has an entry that is not LABEL=ADDRESS, with a label of letters, digits and `_.-`")
    _check_network_url(url)
    if url and (urlsplit(url).scheme not in PROXY_SCHEMES or not urlsplit(url).hostname):
        raise ValueError(f"has an invalid proxy address for {label}")
    return LabelledProxy(label, url)


def read_commands(value: object) -> tuple[NamedCommand, ...]:
    """Parse commands, separated by commas. Each one is written `NAME=COMMAND ARGUMENT…`."""
    found = _read_list(value, "commands", _read_command, separator=",")
    if len({one.name for one in found}) < len(found):
        raise ValueError("has the same name twice")
    return found


def _read_command(part: object) -> NamedCommand:
    if isinstance(part, NamedCommand):
        return part
    name, mark, command = read_text(part).partition("=")
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        words = ()
    if not mark or not _COMMAND_NAME.fullmatch(name.strip()) or not words:
        raise ValueError("has an entry that is not NAME=COMMAND, with a name of lower-case letters, digits and `_`")
    return NamedCommand(name.strip(), words)


def read_store_url(value: object) -> str:
    url = read_text(value)
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        if not rest.startswith("/") or len(rest) < 2 or rest.endswith((":memory:", "/")):
            raise ValueError("does not name a file")
    elif scheme in ("postgresql", "postgres"):
        _check_network_url(url)
    else:
        raise ValueError("is not a store URL")
    return url


def read_service_url(value: object, schemes: tuple[str, ...]) -> str:
    """Parse the address of a network service; empty means none."""
    url = read_text(value)
    if url and url.partition("://")[0] not in schemes:
        raise ValueError("is not a valid URL for this setting")
    _check_network_url(url)
    return url


def _check_network_url(url: str) -> None:
    try:
        urlsplit(url).port  # noqa: B018 - reading it is the check
    except ValueError:
        raise ValueError("has an invalid host or port") from None


def read_path(value: object) -> Path | None:
    if value is None:
        return None
    text = str(value) if isinstance(value, Path) else read_text(value)
    try:
        return Path(text).expanduser().absolute() if text else None
    except RuntimeError:
        raise ValueError("begins with the home folder of an unknown user") from None


def read_body_place(value: object) -> str:
    text = read_text(value)
    if not text.startswith("s3:"):
        return str(read_path(text) or "")
    if not _BUCKET.fullmatch(text):
        raise ValueError("is not a bucket with a prefix of letters, digits and `_.-/`")
    return text.rstrip("/")


def read_node_id(value: object) -> str:
    text = read_text(value)
    if not _NODE_ID.fullmatch(text):
        raise ValueError("contains characters other than letters, digits and hyphens")
    return text


@lru_cache(maxsize=1000)
def is_loopback(host: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        found = ip_address(name)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def show_duration(duration: timedelta) -> str:
    """Return the shortest text from which the parser reads this duration."""
    if duration == FOREVER:
        return "inf"
    for unit in ("d", "h", "m", "s"):
        if duration and duration % _UNITS[unit] == timedelta(0):
            return f"{duration // _UNITS[unit]}{unit}"
    return f"{Decimal(duration // _MICROSECOND) / 1000:f}ms" if duration else "0s"


def show_size(size: int) -> str:
    """Return the shortest text from which the parser reads this size."""
    for unit in ("GB", "MB", "KB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def show(value: object) -> str:
    """Format a value as text that the parser for its type accepts."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, timedelta):
        return show_duration(value)
    if isinstance(value, tuple) and not isinstance(value, Address):
        return ",".join(map(str, value))
    return str(value)


LARGEST_TOML = 1_000_000  # characters
_BIGGEST_INT = 2**63 - 1
_SMALL_TOML = 5_000  # characters; a shorter text is parsed fast, whatever it contains
_LONG_KEY = r"""(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){50}"""


def read_toml(text: str) -> dict[str, Any]:
    """Parse untrusted TOML. Raise `ValueError` for text that is not TOML, or that would take long to parse."""
    import tomllib  # imported here, because most commands read no TOML

    import re2

    if len(text) > LARGEST_TOML:
        raise ValueError(f"it has more than {LARGEST_TOML:,} characters")
    if len(text) > _SMALL_TOML and re2.search(_LONG_KEY, text):  # parsing time grows with the square of the parts
        raise ValueError("a key has more than 50 parts")
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check_numbers(values)
    return values


def _check_numbers(values: dict[str, Any]) -> None:
    """Refuse integers of more than 64 bits. A hexadecimal one may be so large that Python refuses to print it."""
    waiting: list[Any] = [values]
    while waiting:
        part = waiting.pop()
        if isinstance(part, int) and not -_BIGGEST_INT <= part <= _BIGGEST_INT:
            raise ValueError("it has a number of more than 64 bits")
        if isinstance(part, dict | list):
            waiting += part.values() if isinstance(part, dict) else part


def read_config_file(path: Path) -> bytes:
    """Read a configuration file. Raise `OSError` if the file is too large, or if reading may block, as from a pipe."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISCHR(mode):  # /dev/null is a character device
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(LARGEST_TOML + 1)
    if len(data) > LARGEST_TOML:
        raise OSError(errno.EFBIG, f"it has more than {LARGEST_TOML:,} bytes")
    return data
