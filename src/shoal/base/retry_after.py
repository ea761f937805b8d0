"""The `Retry-After` field: how long a server asks us to wait. Pure. What cannot be read counts as absent."""

import re
from datetime import UTC, datetime, timedelta

_SECONDS = re.compile(r"[0-9]{1,10}")


def wait_of(text: str | None, now: datetime, longest: timedelta) -> timedelta | None:
    """How long to wait: seconds, or until a date. None without a field, and for one that is unreadable, past, or longer
    than we are willing to wait."""
    if text is None:
        return None
    wait = _seconds(text) if _SECONDS.fullmatch(text.strip()) else _until(text, now)
    return wait if wait is not None and timedelta(0) < wait <= longest else None


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=int(text))


def _until(text: str, now: datetime) -> timedelta | None:
    from email.utils import parsedate_to_datetime  # slow to import, seldom used

    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
