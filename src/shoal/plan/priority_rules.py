"""The file of priority rules, read once at process start. The meaning of rules is defined in `priority`."""

from pathlib import Path
from typing import Any

import orjson

from shoal.base.errors import BadConfig
from shoal.base.parsing import read_config_file, read_toml
from shoal.base.text import shorten
from shoal.plan.priority import RULES, PriorityRule, read_rules

SETTING = "SHOAL_PRIORITY_RULES"


def read_priority_rules(path: Path | None) -> tuple[PriorityRule, ...]:
    """Return the rules of a file, TOML if its name says so, else JSON; without a file, the built-in rules."""
    return RULES if path is None else read_rules(_read(path), f"{SETTING} ({path}):")


def _read(path: Path) -> Any:
    try:
        data = read_config_file(path)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise BadConfig(SETTING, f"names {path}, which cannot be read ({why})", "use a readable file") from None
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        return read_toml(data.decode()) if kind == "TOML" else orjson.loads(data)
    except ValueError as error:  # invalid TOML, JSON or UTF-8
        problem = f"names {path}, which is not {kind} ({shorten(error, 200)})"
        raise BadConfig(SETTING, problem, "correct that line") from None
