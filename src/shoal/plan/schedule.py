"""Compute when a policy runs: at a fixed frequency or by cron, within its time windows, with optional jitter. Pure
functions.

Each policy has a grid of planned times: multiples of its frequency after the first run, or the matches of its cron
expression. Windows and jitter delay a run, but never shift the grid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import xxhash
from cronsim import CronSim, CronSimError

from shoal.base.clock import from_micros, span, to_micros
from shoal.base.parsing import read_span

SHORTEST, LONGEST = timedelta(minutes=1), timedelta(days=366)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST_WINDOWS = 20
CRON_FIX = "write five fields, such as 30 6 * * 1-5"
_WINDOW = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))? +)?(\d\d):(\d\d)-(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Part of a day in which runs may start; it may span midnight."""

    days: frozenset[int]
    begins: time
    ends: time

    def next_inside(self, moment: datetime) -> datetime:
        """Return `moment` itself if it is inside the window, otherwise the time when the window next opens."""
        for day in range(-1, 9):
            on = (moment + timedelta(days=day)).date()
            opens, closes = self._on(on, moment.tzinfo)
            if on.weekday() in self.days and opens < closes and moment < closes:
                return max(moment, opens)
        raise AssertionError("a window opens within a week")

    def _on(self, day: date, zone: tzinfo | None) -> tuple[datetime, datetime]:
        """Return when the window opens and closes on a day. The times are in UTC, because local times around a DST
        change do not compare correctly."""
        past_midnight = timedelta(days=1 if self.ends <= self.begins else 0)
        opens = datetime.combine(day, self.begins, zone)
        return opens.astimezone(UTC), datetime.combine(day + past_midnight, self.ends, zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a policy. Either `frequency` or `cron` is set."""

    frequency: timedelta | None = None
    cron: str | None = None
    timezone: str = "UTC"
    windows: tuple[TimeWindow, ...] = ()
    jitter: timedelta = timedelta(0)

    def next_planned(self, planned: int, now: int) -> int:
        """Return the first planned time after both times, so that any number of missed runs become one run."""
        if self.frequency is not None:
            step = span(self.frequency)
            return planned + step * max(1, -(-(now + 1 - planned) // step))
        return _next_of(self.cron or "", self.timezone, max(planned, now))

    def begins(self, policy_id: str, planned: int) -> int:
        """Return when a planned run starts, with jitter and windows applied. Deterministic, so every process agrees."""
        jitter = span(self.jitter)
        if jitter:
            planned += xxhash.xxh3_64_intdigest(f"{policy_id}@{planned}".encode()) % jitter
        return self.opens(planned)

    def opens(self, at: int) -> int:
        """Return the earliest time from `at` on at which a run may start: immediately, or when the next window
        opens."""
        if not self.windows:
            return at
        moment = from_micros(at).astimezone(zone(self.timezone))
        return to_micros(min(window.next_inside(moment) for window in self.windows))


@lru_cache(maxsize=1000)  # policies created or due together ask for the same time
def _next_of(cron: str, timezone: str, after: int) -> int:
    moment = from_micros(after).astimezone(zone(timezone))
    return to_micros(next(CronSim(cron, moment)))


@lru_cache(maxsize=1000)
def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # `OSError` if the name is a directory of zones
        raise ValueError(f"{name[:50]!r} is not a time zone; write it as Europe/Berlin") from None


def check_frequency(text: str) -> str:
    if not SHORTEST <= read_span(text) <= LONGEST:
        raise ValueError(f"{text!r} is not between 1m and 366d; write it as 30m, 12h or 7d")
    return text


@lru_cache(maxsize=1000)
def check_cron(text: str) -> str:
    """Check a cron expression: five fields in Debian cron syntax that match some date."""
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"{text[:50]!r} is not a cron expression; {CRON_FIX}")
    try:
        next(CronSim(text, from_micros(0)))
    except CronSimError as error:
        raise ValueError(f"{text[:50]!r} is not a cron expression ({str(error).lower()}); {CRON_FIX}") from None
    except StopIteration:
        raise ValueError(f"{text[:50]!r} never matches; choose a date that exists") from None
    return " ".join(fields)


def check_windows(texts: Sequence[str]) -> list[str]:
    for text in texts:
        read_window(text)
    return list(texts)


@lru_cache(maxsize=1000)
def read_window(text: str) -> TimeWindow:
    """Parse `08:00-18:00`, `Mon-Fri 08:00-18:00` or `Sat 22:00-04:00`."""
    match = _WINDOW.fullmatch(text.strip().lower())
    days = _days(match[1], match[2]) if match else None
    if match is None or days is None:
        raise ValueError(f"{text[:50]!r} is not a time window; write it as Mon-Fri 08:00-18:00")
    try:
        begins, ends = _clock(match[3], match[4]), _clock(match[5], match[6])
    except ValueError:
        raise ValueError(f"{text[:50]!r} has an invalid time of day; write it as Mon-Fri 08:00-18:00") from None
    return TimeWindow(days, begins, ends)


def _clock(hours: str, minutes: str) -> time:
    """Return a time of day; 24:00 means the end of the day."""
    return time(0) if (hours, minutes) == ("24", "00") else time(int(hours), int(minutes))


def _days(first: str | None, last: str | None) -> frozenset[int] | None:
    if first is None:
        return frozenset(range(7))
    if first not in DAYS or (last is not None and last not in DAYS):
        return None
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset((begin + step) % 7 for step in range((end - begin) % 7 + 1))
