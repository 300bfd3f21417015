"""When an alarm is due: pure arithmetic on instants, with the clocks of the world."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import BadSchedule, Cron, Every
from perdure.engine.schedules import LATE_MS, is_missed, next_due, spec_of

NOW = 1_700_000_000_000
"""2023-11-14, 22:13:20 UTC."""


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def due(when: Any, now: int = NOW) -> int:
    return spec_of(when, "collapse", now)[1]


@pytest.mark.parametrize(
    ("when", "after"),
    [(0, 0), (1, 1_000), (0.0015, 1), (2.5, 2_500), (timedelta(minutes=2), 120_000), (Every(60), 60_000)],
)
def test_a_delay_or_interval_counts_from_now(when: Any, after: int) -> None:
    assert due(when) == NOW + after


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Berlin")])
def test_a_datetime_is_an_instant_whatever_its_zone(zone: Any) -> None:
    assert due(datetime.fromtimestamp(NOW / 1000 + 60, zone)) == NOW + 60_000


def test_a_datetime_in_the_past_is_due_at_once() -> None:
    assert due(datetime(2020, 1, 1, tzinfo=UTC)) < NOW


@pytest.mark.parametrize(
    ("expression", "zone", "first"),
    [
        ("0 9 * * *", "UTC", "2023-11-15T09:00:00"),
        ("*/15 * * * *", "UTC", "2023-11-14T22:15:00"),
        ("0 0 1 1 *", "UTC", "2024-01-01T00:00:00"),
        ("0 0 29 2 *", "UTC", "2024-02-29T00:00:00"),
        ("0 12 * * MON", "UTC", "2023-11-20T12:00:00"),
        ("30 * * * * *", "UTC", "2023-11-14T22:13:30"),
        ("0 9 * * *", "Europe/Berlin", "2023-11-15T09:00:00"),
        ("0 9 * * *", "Asia/Kolkata", "2023-11-15T09:00:00"),
        ("0 9 * * *", "America/New_York", "2023-11-15T09:00:00"),
    ],
)
def test_cron_is_due_by_the_wall_clock_of_its_zone(expression: str, zone: str, first: str) -> None:
    assert due(Cron(expression, zone)) == ms(first, zone)


def days(expression: str, zone: str, start: str, count: int) -> list[str]:
    """The first times, by the wall clock of the zone, with the offset that was in force."""
    spec, at = spec_of(Cron(expression, zone), "collapse", ms(start, zone))
    found = []
    for _ in range(count):
        found.append(datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).isoformat(timespec="minutes"))
        following = next_due(spec, at, at)
        assert following is not None
        at = following
    return found


def test_a_daily_time_that_is_skipped_in_spring_is_run_once_that_day() -> None:
    """On 2024-03-31 in Berlin 02:00 is followed by 03:00."""
    found = days("30 2 * * *", "Europe/Berlin", "2024-03-30T00:00:00", 3)
    assert [one[:10] for one in found] == ["2024-03-30", "2024-03-31", "2024-04-01"]
    assert found[0].endswith("02:30+01:00")
    assert found[2].endswith("02:30+02:00")


def test_a_daily_time_that_comes_twice_in_autumn_is_run_once_that_day() -> None:
    """On 2024-10-27 in Berlin 03:00 is followed by 02:00."""
    found = days("30 2 * * *", "Europe/Berlin", "2024-10-26T00:00:00", 3)
    assert [one[:10] for one in found] == ["2024-10-26", "2024-10-27", "2024-10-28"]
    assert found[0].endswith("02:30+02:00")
    assert found[2].endswith("02:30+01:00")


def test_an_hourly_time_goes_on_through_both_changes() -> None:
    for start in ("2024-03-31T00:00:00", "2024-10-27T00:00:00"):
        spec, at = spec_of(Cron("0 * * * *", "Europe/Berlin"), "collapse", ms(start, "Europe/Berlin"))
        for _ in range(6):
            following = next_due(spec, at, at)
            assert following == at + 3_600_000
            at = following


@given(st.integers(1, 10_000_000), st.integers(0, 10_000_000), st.integers(0, 10_000_000))
def test_the_next_time_of_an_interval_is_on_its_grid_and_in_the_future(
    every: int, due_at: int, late: int
) -> None:
    now = due_at + late
    following = next_due({"every": every, "missed": "collapse"}, due_at, now)
    assert following is not None
    assert now < following <= now + every
    assert (following - due_at) % every == 0


@given(st.integers(1, 10_000_000), st.integers(0, 10_000_000), st.integers(0, 10_000_000))
def test_with_each_the_next_time_is_one_interval_on_however_late_it_is(
    every: int, due_at: int, late: int
) -> None:
    assert next_due({"every": every, "missed": "each"}, due_at, due_at + late) == due_at + every


def test_a_missed_cron_time_collapses_or_is_made_up_for() -> None:
    at = ms("2024-01-01T09:00:00")
    later = ms("2024-01-04T12:00:00")
    spec = {"cron": "0 9 * * *", "zone": "UTC"}
    assert next_due({**spec, "missed": "collapse"}, at, later) == ms("2024-01-05T09:00:00")
    assert next_due({**spec, "missed": "skip"}, at, later) == ms("2024-01-05T09:00:00")
    assert next_due({**spec, "missed": "each"}, at, later) == ms("2024-01-02T09:00:00")


def test_a_one_time_alarm_is_never_due_again() -> None:
    assert next_due({}, NOW, NOW) is None


@pytest.mark.parametrize(("late", "missed"), [(0, False), (LATE_MS, False), (LATE_MS + 1, True)])
def test_only_with_skip_a_late_run_is_missed(late: int, missed: bool) -> None:
    assert is_missed({"every": 1, "missed": "skip"}, NOW, NOW + late) is missed
    assert is_missed({"every": 1, "missed": "collapse"}, NOW, NOW + late) is False
    assert is_missed({"every": 1, "missed": "each"}, NOW, NOW + late) is False
    assert is_missed({}, NOW, NOW + late) is False


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (-1, "a delay of -1 s"),
        (-0.001, "a delay of -0.001 s"),
        (timedelta(seconds=-1), "a delay of -1.0 s"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (1e300, "1e+300"),
        (1e16, "1e+16"),
        (True, "not True"),
        ("tomorrow", "not 'tomorrow'"),
        (None, "not None"),
        (datetime(2030, 1, 1), "a time without a time zone"),
        (Every(0), "an interval of 0 s"),
        (Every(-5), "an interval of -5 s"),
        (Every(0.0001), "an interval of 0.0001 s"),
        (Every(float("inf")), "inf"),
        (Every(1e300), "1e+300"),
        (Cron("* * *"), "'* * *'"),
        (Cron("61 * * * *"), "'61 * * * *'"),
        (Cron("* * * * FOO"), "'* * * * FOO'"),
        (Cron(""), "''"),
        (Cron("0 0 31 2 *"), "0 0 31 2 *"),
        (Cron("* * * * *", "Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (Cron("* * * * *", "../../etc/passwd"), "no time zone '../../etc/passwd'"),
        (Cron("* * * * *", ""), "no time zone ''"),
    ],
    ids=repr,
)
def test_a_schedule_that_can_never_be_due_is_refused(when: Any, said: str) -> None:
    with pytest.raises(BadSchedule) as refused:
        spec_of(when, "collapse", NOW)
    assert said in str(refused.value)


def test_what_becomes_of_missed_runs_is_one_of_three() -> None:
    with pytest.raises(BadSchedule, match="collapse, each, skip, not 'all'"):
        spec_of(Every(1), "all", NOW)  # type: ignore[arg-type]
