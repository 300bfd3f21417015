"""When an alarm is due: once, after a delay, at an interval, by cron with a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..core.errors import BadSchedule

Missed = Literal["collapse", "each", "skip"]
"""What becomes of runs that were due while nobody could fire them: one of them is run, each
is run, or none is."""

MISSED = ("collapse", "each", "skip")
LONGEST_MS = 1_000 * 366 * 24 * 3_600_000
LATE_MS = 60_000
"""With `skip`, a run this late counts as missed."""


@dataclass(frozen=True, slots=True)
class Every:
    """At an interval, the first time after one interval."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cron:
    """By a cron expression (five or six fields), in a time zone."""

    expression: str
    zone: str = "UTC"


When: TypeAlias = datetime | timedelta | float | int | Every | Cron


def spec_of(when: When, missed: Missed, now: int) -> tuple[dict[str, Any], int]:
    """The schedule as a value to store, and its first due time. Raises `BadSchedule`."""
    if missed not in MISSED:
        raise BadSchedule(f"(missed is one of {', '.join(MISSED)}, not {missed!r})")
    match when:
        case Every(seconds):
            every = _ms(seconds)
            if every < 1:
                raise BadSchedule(f"(an interval of {seconds} s)")
            return {"every": every, "missed": missed}, now + every
        case Cron(expression, zone):
            spec = {"cron": expression, "zone": zone, "missed": missed}
            return spec, _next_cron(expression, zone, now)
        case datetime():
            if when.tzinfo is None:
                raise BadSchedule("(a time without a time zone)")
            return {}, int(when.timestamp() * 1000)
        case timedelta():
            return {}, now + _delay(when.total_seconds())
        case _:
            return {}, now + _delay(when)


def next_due(spec: dict[str, Any], due_at: int, now: int) -> int | None:
    """When it is due after `due_at`, given that it is `now`; None if it never is again."""
    after = due_at if spec.get("missed") == "each" else max(due_at, now)
    if "every" in spec:
        every = int(spec["every"])
        return due_at + every * ((after - due_at) // every + 1)
    if "cron" in spec:
        return _next_cron(spec["cron"], spec["zone"], after)
    return None


def is_missed(spec: dict[str, Any], due_at: int, now: int) -> bool:
    """Whether this run came too late to be run at all."""
    return spec.get("missed") == "skip" and now - due_at > LATE_MS


def _delay(seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise BadSchedule(f"(a time is a datetime, timedelta, seconds, Every or Cron, not {seconds!r})")
    if not seconds >= 0:
        raise BadSchedule(f"(a delay of {seconds} s)")
    return _ms(seconds)


def _ms(seconds: float) -> int:
    try:
        milliseconds = int(seconds * 1000)
    except (OverflowError, ValueError, TypeError):
        raise BadSchedule(f"(a time of {seconds!r} s)") from None
    if milliseconds > LONGEST_MS:
        raise BadSchedule(f"(a time of {seconds!r} s; the longest is a thousand years)")
    return milliseconds


def _next_cron(expression: str, zone: str, after: int) -> int:
    try:
        start = datetime.fromtimestamp(after / 1000, UTC).astimezone(ZoneInfo(zone))
        return int(next(CronSim(expression, start)).timestamp() * 1000)
    except CronSimError as error:
        raise BadSchedule(f"(cron {expression!r}: {error})") from None
    except StopIteration:
        raise BadSchedule(f"(cron {expression!r} is never due)") from None
    except (LookupError, ValueError, OSError):
        raise BadSchedule(f"(there is no time zone {zone!r})") from None
