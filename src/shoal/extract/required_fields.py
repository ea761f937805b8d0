"""Check data that a bot extracted for the required fields of its rule set. Pure; `rule_reader` checks its own data."""

from collections.abc import Mapping
from typing import Any, Final

MOST_PROBLEMS: Final = 10


def missing_fields(rule_set: Mapping[str, Any] | None, url: str, data: Any) -> str | None:
    """Return the missing required fields in one sentence; None if there are none."""
    if not rule_set or not _is_for(rule_set, url):
        return None
    problems: list[str] = []
    if isinstance(data, Mapping):
        _look(rule_set["fields"], data, "", problems)
    elif any(rule.get("required") for rule in rule_set["fields"].values()):
        problems.append("the data is not an object, but the rule set has required fields")
    text = "; ".join(problems[:MOST_PROBLEMS])
    return f"{text}." if text else None


def _is_for(rule_set: Mapping[str, Any], url: str) -> bool:
    if not rule_set.get("urls"):
        return True
    from shoal.extract.selectors import regex

    return any(regex(pattern).search(url) for pattern in rule_set["urls"])


def _look(fields: Mapping[str, Any], data: Mapping[str, Any], where: str, problems: list[str]) -> None:
    for name, rule in fields.items():
        value = data.get(name)
        if rule.get("required") and value in (None, "", []):
            problems.append(f"{where}{name} is required and missing")
        for place, one in enumerate(value if rule.get("each") and isinstance(value, list) else []):
            if isinstance(one, Mapping):
                _look(rule["each"], one, f"{where}{name}[{place}].", problems)
