"""Loads settings from flags, the environment and `shoal.toml`, and shows them.

The settings are defined in `settings`. A setting has one name everywhere: in the environment, as a top-level key
of `shoal.toml`, and in messages. Flags take precedence over the environment, the environment over `shoal.toml`, and
`shoal.toml` over the defaults. An empty variable counts as unset.
"""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from shoal.base.errors import BadConfig
from shoal.base.parsing import read_config_file, read_toml
from shoal.base.setting import Setting, SettingsSection
from shoal.base.settings import Settings, data_dir
from shoal.base.text import HIDDEN, nearest, redact_url, shorten

RESERVED = ("SHOAL_CONFIG", "SHOAL_PYTHON", "SHOAL_COMMAND")
RESERVED_PREFIX = "SHOAL_TEST_"
# Variables that Kubernetes sets in every pod for each service whose name begins with "shoal".
OF_A_SERVICE = re.compile(
    r"SHOAL_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=\d+$|PORT(_\d+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=)"
)

REMOVED = {
    "SHOAL_ROBOTS_TTL": "a robots.txt is cached for 24 hours",
    "SHOAL_SLOW_PAGE": "a page is slow after 2 seconds",
    "SHOAL_DEEPEST_PAGE": "a page is too deep beyond 4 clicks; a gate may set a different `max_depth`",
    "SHOAL_FEWEST_WORDS": "a page with fewer than 50 words is thin",
}
"""Names of removed settings, each with the rule that replaced the setting."""

# A variable that has one of these prefixes and nearly the name of a setting is a typing error. Names that are similar
# to `DATABASE_URL` and `REDIS_URL` are not reported, because other programs use such names.
UNPREFIXED = ("WORKER_", "GRPC_", "MAX_CONCURRENT_", "RENDERER_")
NEARLY_EQUAL = 0.94

SECTIONS: Mapping[str, type[SettingsSection]] = {
    name: Settings.__annotations__[name] for name in Settings.__struct_fields__
}


CATALOGUE: Mapping[str, Setting] = {one.env: one for kind in SECTIONS.values() for one in kind.settings.values()}
"""All settings by name."""


class RemovedSetting(UserWarning):
    """A setting that no longer has an effect is set."""


class ShownSetting(Struct, frozen=True):
    """One effective value, safe to print, and the source of the value."""

    env: str
    value: str
    source: str
    plain: bool | int | float | str  # the value for JSON: numbers and booleans are not converted to text


class LoadedSettings(Struct, frozen=True):
    """The settings, and the source of each value: `flag`, `env`, the path of the file, or `default`."""

    settings: Settings
    sources: Mapping[str, str]

    def shown(self) -> list[ShownSetting]:
        rows = []
        for section, kind in SECTIONS.items():
            for name, one in kind.settings.items():
                held = getattr(getattr(self.settings, section), name)
                value = _safe(one, held)
                is_plain = isinstance(held, bool | int | float) and not one.secret and one.kind.name != "size"
                rows.append(ShownSetting(one.env, value, self.sources[one.env], held if is_plain else value))
        return rows


def _safe(setting: Setting, held: Any) -> str:
    value = setting.written(held)
    if not setting.secret or not value:
        return value
    if setting.kind.name == "proxies":
        return setting.written(tuple(one.redacted() for one in held))
    return redact_url(value) if setting.env.endswith("_URL") else HIDDEN


class _RawSetting(Struct, frozen=True):
    value: Any
    source: str


def load(
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    toml_path: Path | None = None,
) -> LoadedSettings:
    """Load the settings from flags, the environment and `shoal.toml`. `flags` are values by setting name; None means
    that the flag is not given."""
    env = os.environ if env is None else env
    path = find_toml(env) if toml_path is None else toml_path
    given = _from_file(path) if path else {}
    given |= _from_env(env)
    given |= {name: _RawSetting(value, "flag") for name, value in (flags or {}).items() if value is not None}
    values = {name: _read(CATALOGUE[name], one) for name, one in given.items()}
    slices: dict[str, Any] = {
        section: {name: values[one.env] for name, one in kind.settings.items() if one.env in values}
        for section, kind in SECTIONS.items()
    }
    slices["database"].setdefault("data_dir", data_dir(env))
    sections: dict[str, Any] = {section: kind(**slices[section]) for section, kind in SECTIONS.items()}
    sources = {name: given[name].source if name in given else "default" for name in CATALOGUE}
    return LoadedSettings(Settings(**sections), sources)


def find_toml(env: Mapping[str, str]) -> Path | None:
    """Return the path in `SHOAL_CONFIG`, else `shoal.toml` if it exists in the current folder, else None."""
    if named := env.get("SHOAL_CONFIG"):
        return Path(named)
    here = Path("shoal.toml")
    return here if here.exists() else None


def _from_env(env: Mapping[str, str]) -> dict[str, _RawSetting]:
    for name in sorted(env):
        if name in REMOVED:
            _warn_of_removed(name)
        elif name not in CATALOGUE and _is_misspelt(name, env[name]):
            raise BadConfig(shorten(name), "is not a setting", _fix_for(name, f"unset {shorten(name)}"))
    return {name: _RawSetting(env[name], "env") for name in CATALOGUE if env.get(name, "").strip()}


def _is_misspelt(name: str, value: str) -> bool:
    if name.startswith(UNPREFIXED):
        return nearest(name, CATALOGUE, similarity=NEARLY_EQUAL) is not None
    is_reserved = name in RESERVED or name.startswith(RESERVED_PREFIX) or OF_A_SERVICE.match(f"{name}={value}")
    return name.startswith("SHOAL_") and not is_reserved


def _warn_of_removed(name: str) -> None:
    warnings.warn(f"{name} is no longer a setting: {REMOVED[name]}", RemovedSetting, stacklevel=4)


def _from_file(path: Path) -> dict[str, _RawSetting]:
    found = _read_toml(path)
    for name, value in found.items():
        if isinstance(value, dict):
            fix = f"write settings by their names at the top level of {path}, such as WORKER_CONCURRENCY = 2"
            raise BadConfig(f"[{shorten(name)}]", f"in {path} is a section", fix)
        if name in REMOVED:
            _warn_of_removed(name)
        elif name not in CATALOGUE:
            raise BadConfig(shorten(name), f"in {path} is not a setting", _fix_for(name, "remove the line"))
    return {name: _RawSetting(value, str(path)) for name, value in found.items() if name not in REMOVED}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return read_toml(read_config_file(path).decode())
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise BadConfig(str(path), f"cannot be read ({why})", "point SHOAL_CONFIG at a readable file") from None
    except ValueError as error:  # bad TOML and bad UTF-8
        raise BadConfig(str(path), f"is not TOML ({shorten(error, 200)})", "correct that line") from None


def _fix_for(name: str, otherwise: str) -> str:
    close = nearest(name.upper(), CATALOGUE, similarity=0.6)
    return f"the nearest setting is {close}" if close else f"{otherwise}, or see docs/reference/settings.md"


def _read(setting: Setting, given: _RawSetting) -> Any:
    try:
        return setting.read(given.value)
    except ValueError as error:
        value = "has a value that" if setting.secret else f'is "{shorten(given.value)}", which'
        where = {"env": "", "flag": " (on the command line)"}.get(given.source, f" (in {given.source})")
        raise BadConfig(setting.env + where, f"{value} {error}", f"set it to {setting.accepts}") from None
