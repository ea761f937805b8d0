"""Parses the `Retry-After` header: how long a server asks us to wait. Pure. An unreadable value counts as absent."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_SECONDS = re.compile(r"[0-9]{1,10}")


def asked_wait(header: Callable[[str], str | None]) -> str | None:
    """Return the header of a response. A date is converted to seconds after the server's own `Date` header, if there is
    one, so that an error of our clock does not matter."""
    text, sent_at = header("retry-after"), header("date")
    if text is None or sent_at is None or _SECONDS.fullmatch(text.strip()):
        return text
    sent = _date(sent_at)
    wait = None if sent is None else _until(text, sent)
    return text if wait is None else str(max(0, int(wait.total_seconds())))


def parse_retry_after(text: str | None, now: datetime, longest: timedelta) -> timedelta | None:
    """Return how long to wait, from seconds or a date. None if the header is absent, unreadable, in the past, or longer
    than the limit."""
    if text is None:
        return None
    wait = timedelta(seconds=int(text)) if _SECONDS.fullmatch(text.strip()) else _until(text, now)
    return wait if wait is not None and timedelta(0) < wait <= longest else None


def _until(text: str, now: datetime) -> timedelta | None:
    date = _date(text)
    return None if date is None else date - now


def _date(text: str) -> datetime | None:
    from email.utils import parsedate_to_datetime  # slow to import, seldom used

    try:
        date = parsedate_to_datetime(text)
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
