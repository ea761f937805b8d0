"""When policies run: frequencies, cron over changes of the clock, windows, jitter. B76."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.clock import from_micros, span, to_micros
from shoal.plan.schedule import Schedule, check_cron, check_frequency, read_window, zone

BERLIN = ZoneInfo("Europe/Berlin")
DAY = timedelta(days=1)


def at(*parts: int, tz: ZoneInfo = BERLIN) -> int:
    year, month, day, hour, minute = parts
    return to_micros(datetime(year, month, day, hour, minute, tzinfo=tz))


def runs(schedule: Schedule, begin: int, count: int) -> list[str]:
    found = []
    for _ in range(count):
        begin = schedule.next_planned(begin, begin)
        found.append(from_micros(begin).astimezone(BERLIN).strftime("%m-%d %H:%M"))
    return found


@given(st.integers(1, 10**6), st.integers(0, 10**15), st.integers(0, 10**15))
def test_a_frequency_keeps_its_grid_and_never_plans_the_past(minutes: int, planned: int, now: int) -> None:
    schedule = Schedule(frequency=timedelta(minutes=minutes))
    following = schedule.next_planned(planned, now)
    assert following > max(planned, now)
    assert (following - planned) % span(timedelta(minutes=minutes)) == 0
    assert following - max(planned, now) <= span(timedelta(minutes=minutes))


def test_runs_that_were_missed_are_one_run() -> None:
    schedule = Schedule(frequency=timedelta(hours=6))
    assert runs(schedule, at(2026, 1, 1, 0, 0), 2) == ["01-01 06:00", "01-01 12:00"]
    late = schedule.next_planned(at(2026, 1, 1, 0, 0), at(2026, 1, 3, 7, 0))
    assert from_micros(late).astimezone(BERLIN).strftime("%m-%d %H:%M") == "01-03 12:00"


def test_cron_skips_and_repeats_no_day_when_clocks_change() -> None:
    night = Schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    assert runs(night, at(2026, 3, 27, 12, 0), 3) == ["03-28 02:30", "03-29 03:00", "03-30 02:30"]
    assert runs(night, at(2026, 10, 24, 0, 0), 3) == ["10-24 02:30", "10-25 02:30", "10-26 02:30"]


def test_every_half_hour_goes_on_through_both_changes() -> None:
    often = Schedule(cron="*/30 * * * *", timezone="Europe/Berlin")
    for day in ((2026, 3, 29, 0, 0), (2026, 10, 25, 0, 0)):
        begin = at(*day)
        for _ in range(12):
            following = often.next_planned(begin, begin)
            assert following - begin == span(timedelta(minutes=30))
            begin = following


def test_a_run_waits_for_its_window_and_the_grid_stays() -> None:
    office = (read_window("Mon-Fri 08:00-18:00"),)
    schedule = Schedule(frequency=timedelta(hours=6), timezone="Europe/Berlin", windows=office)
    saturday = at(2026, 3, 28, 1, 0)
    assert from_micros(schedule.begins("p", saturday)).astimezone(BERLIN).strftime("%a %H:%M") == "Mon 08:00"
    inside = at(2026, 3, 30, 9, 30)
    assert schedule.begins("p", inside) == inside


def test_a_window_may_go_past_midnight() -> None:
    night = read_window("Sat 22:00-04:00")
    sunday = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)
    assert night.next_inside(sunday) == sunday
    assert night.next_inside(sunday + timedelta(hours=2)) == datetime(2026, 3, 7, 22, 0, tzinfo=UTC)


def test_a_window_in_the_hour_that_comes_twice_is_never_in_the_past() -> None:
    schedule = Schedule(frequency=DAY, timezone="Europe/Berlin", windows=(read_window("02:30-03:00"),))
    second = to_micros(datetime(2026, 10, 25, 1, 15, tzinfo=UTC))  # 02:15 local time, for the second time
    assert schedule.begins("p", second) == second  # the window opened at the first 02:30


def test_a_window_in_the_hour_that_is_left_out_waits_for_the_next_day() -> None:
    schedule = Schedule(frequency=DAY, timezone="Europe/Berlin", windows=(read_window("02:30-03:00"),))
    before = at(2026, 3, 29, 1, 50)
    assert from_micros(schedule.begins("p", before)).astimezone(BERLIN).strftime("%m-%d %H:%M") == "03-30 02:30"


@given(
    st.integers(1_577_836_800, 2_051_222_400),  # seconds: 2020 to 2035
    st.sampled_from(["02:30-03:00", "Sun 01:00-03:30", "22:00-02:15", "Mon-Fri 08:00-18:00", "00:00-24:00"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Pacific/Apia"]),
)
def test_no_window_moves_a_run_back(seconds: int, window: str, name: str) -> None:
    schedule = Schedule(frequency=DAY, timezone=name, windows=(read_window(window),))
    planned = seconds * 1_000_000
    assert planned <= schedule.begins("p", planned) <= planned + span(8 * DAY)


@given(st.text(min_size=1, max_size=20), st.integers(0, 10**15))
def test_jitter_is_the_same_for_the_same_plan_and_stays_within_bounds(policy: str, planned: int) -> None:
    schedule = Schedule(frequency=DAY, jitter=timedelta(minutes=10))
    begins = schedule.begins(policy, planned)
    assert begins == schedule.begins(policy, planned)
    assert 0 <= begins - planned < span(timedelta(minutes=10))


@pytest.mark.parametrize("text", ["0", "0s", "-1h", "5 minutes!", "", "1s", "400d", "h", "1e9d"])
def test_a_bad_frequency_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is "):
        check_frequency(text)


@pytest.mark.parametrize(
    "text", ["61 * * * *", "0 0 30 2 *", "* * * * * *", "@reboot", "", "a b c d e", "0 0 * * 8", "* * */20 * 1L 7"]
)
def test_a_bad_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cron expression|never matches"):
        check_cron(text)


@pytest.mark.parametrize("name", ["Mars/X", "", "../etc/passwd", "Europe", "Europe/Berlin/x"])
def test_an_unknown_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        zone(name)


@pytest.mark.parametrize("text", ["25:00-26:00", "08:00", "Mo 08:00-10:00", "Mon-Xyz 08:00-10:00", "08:99-09:00"])
def test_a_bad_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"window|time of day"):
        read_window(text)
