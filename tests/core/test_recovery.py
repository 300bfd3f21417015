"""The recovery plan: attempts, spacing, blame, and when it is given up (P10)."""

from typing import Any

import pytest

from perdure.core.facts import FiberRow
from perdure.core.recovery import Enter, GiveUp, Patience, Plan, blamed, plan

from .rows import a_fiber

NOW = 1_000_000
DEAD = {"host": "dead", "attempted_at": NOW}


def planned(fiber: FiberRow, *, suspect: str | None = None, patience: Patience | None = None) -> Plan:
    return plan(fiber, here="here", suspect=suspect, now=NOW, patience=patience or Patience())


def entered(fiber: FiberRow, **more: Any) -> Enter:
    decided = planned(fiber, **more)
    assert isinstance(decided, Enter)
    return decided


@pytest.mark.parametrize(
    ("stalled", "waits"), [(0, 0), (1, 1_000), (2, 5_000), (3, 25_000), (4, 60_000)], ids=lambda n: str(n)
)
def test_attempts_are_spaced(stalled: int, waits: int) -> None:
    decided = entered(a_fiber(stalled=stalled, attempt=7, **DEAD))
    assert decided.at == NOW + waits
    assert (decided.fiber.stalled, decided.fiber.attempt) == (stalled + 1, 8)


def test_spacing_counts_from_the_last_attempt_and_not_from_now() -> None:
    long_ago = a_fiber(stalled=3, host="dead", attempted_at=NOW - 3_600_000)
    assert entered(long_ago).at == NOW
    lately = a_fiber(stalled=3, host="dead", attempted_at=NOW - 20_000)
    assert entered(lately).at == NOW + 5_000


def test_the_sixth_attempt_without_progress_is_not_made() -> None:
    decided = planned(a_fiber(stalled=5, attempt=5, **DEAD))
    assert decided == GiveUp(a_fiber(stalled=5, attempt=5, **DEAD), "5 attempts without progress")


def test_fifty_attempts_end_a_fiber_whatever_it_did() -> None:
    assert isinstance(planned(a_fiber(stalled=0, attempt=49, **DEAD)), Enter)
    decided = planned(a_fiber(stalled=0, attempt=50, **DEAD))
    assert isinstance(decided, GiveUp)
    assert decided.why == "50 attempts in all"


def test_a_fiber_is_entered_five_times_and_then_given_up() -> None:
    fiber = a_fiber(**DEAD)
    times = 0
    while isinstance(decided := planned(fiber), Enter):
        times += 1
        fiber = decided.fiber
    assert times == 5


def test_a_fiber_that_always_gets_somewhere_is_entered_fifty_times() -> None:
    fiber = a_fiber(**DEAD)
    times = 0
    while isinstance(decided := planned(fiber), Enter):
        times += 1
        fiber = decided.fiber._replace(stalled=0)
    assert times == 50


@pytest.mark.parametrize("host", [None, "here"], ids=["a hand-over", "an eviction on this host"])
@pytest.mark.parametrize("stalled", [0, 3, 5])
def test_what_is_no_death_is_no_attempt(host: str | None, stalled: int) -> None:
    fiber = a_fiber(host=host, stalled=stalled, attempt=50, attempted_at=NOW)
    assert planned(fiber) == Enter(fiber, NOW, alone=False)


@pytest.mark.parametrize(
    ("host", "suspect", "guilty"),
    [
        (None, None, False),
        ("here", None, False),
        ("dead", None, True),
        ("dead", "f", True),
        ("dead", "another", False),
        (None, "f", False),
        ("here", "f", False),
    ],
)
def test_a_death_counts_only_for_the_one_just_tried_out(
    host: str | None, suspect: str | None, guilty: bool
) -> None:
    assert blamed(a_fiber(host=host), here="here", suspect=suspect) is guilty


def test_a_neighbour_of_the_suspect_goes_on_at_once_and_uncounted() -> None:
    neighbour = a_fiber(stalled=4, attempt=4, **DEAD)
    assert planned(neighbour, suspect="another") == Enter(neighbour, NOW, alone=False)


@pytest.mark.parametrize(("stalled", "alone"), [(0, False), (1, False), (2, True), (3, True), (4, True)])
def test_from_the_third_attempt_on_a_fiber_enters_alone(stalled: int, alone: bool) -> None:
    assert entered(a_fiber(stalled=stalled, **DEAD)).alone is alone


@pytest.mark.parametrize("stalled", [0, 1, 4])
def test_without_spacing_every_attempt_is_made_at_once(stalled: int) -> None:
    assert entered(a_fiber(stalled=stalled, **DEAD), patience=Patience(spacing=())).at == NOW


def test_spacing_that_is_too_short_repeats_its_last_pause() -> None:
    patience = Patience(attempts=9, spacing=(0, 2))
    waits = [entered(a_fiber(stalled=n, **DEAD), patience=patience).at - NOW for n in range(5)]
    assert waits == [0, 2_000, 2_000, 2_000, 2_000]


def test_patience_can_be_chosen() -> None:
    patience = Patience(attempts=1, attempts_ever=2, alone_from=1)
    assert entered(a_fiber(**DEAD), patience=patience).alone
    assert isinstance(planned(a_fiber(stalled=1, **DEAD), patience=patience), GiveUp)
    assert isinstance(planned(a_fiber(attempt=2, **DEAD), patience=patience), GiveUp)
