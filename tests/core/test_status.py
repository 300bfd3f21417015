"""Status and its reason, from every kind of rows (P4)."""

import pytest

from perdure.core.facts import FiberRow
from perdure.core.status import Facts, Status, orphans, status, why

from .rows import a_fiber, a_session, an_op

WORKS = a_fiber(id="works")
OLDER = a_fiber(id="older", epoch=0)
GIVEN = a_fiber(id="given", host=None)
WAITS = a_fiber(id="waits", parked=b"{}", host=None)
DOUBT = an_op(outcome="doubt")


def facts(*fibers: FiberRow, lives: bool = True, **more: object) -> Facts:
    return Facts(a_session(), fibers, owner_lives=lives, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "is_now", "because"),
    [
        (facts(), Status.IDLE, "no fiber is open"),
        (facts(lives=False), Status.IDLE, "no fiber is open"),
        (facts(WORKS), Status.RUNNING, "1 fiber works"),
        (facts(WORKS, WORKS), Status.RUNNING, "2 fibers work"),
        (facts(WORKS, OLDER), Status.RUNNING, "1 fiber works, 1 fiber waits to be recovered"),
        (facts(OLDER), Status.RESCHEDULING, "1 fiber waits to be recovered"),
        (facts(GIVEN), Status.RESCHEDULING, "1 fiber waits to be recovered"),
        (facts(OLDER, GIVEN), Status.RESCHEDULING, "2 fibers wait to be recovered"),
        (facts(WORKS, lives=False), Status.RESCHEDULING, "1 fiber waits to be recovered"),
        (facts(WAITS), Status.INTERRUPTED, "1 fiber waits for an answer"),
        (facts(WAITS, WAITS), Status.INTERRUPTED, "2 fibers wait for an answer"),
        (facts(WAITS, lives=False), Status.INTERRUPTED, "1 fiber waits for an answer"),
        (facts(WAITS, WORKS), Status.RUNNING, "1 fiber works, 1 fiber waits for an answer"),
        (
            facts(WAITS, OLDER),
            Status.RESCHEDULING,
            "1 fiber waits to be recovered, 1 fiber waits for an answer",
        ),
        (
            facts(WAITS, open_ops=(DOUBT,)),
            Status.INTERRUPTED,
            "1 fiber waits for an answer, 1 op is in doubt",
        ),
        (facts(open_ops=(DOUBT, DOUBT)), Status.IDLE, "2 ops are in doubt"),
        (facts(WORKS, open_ops=(an_op(),)), Status.RUNNING, "1 fiber works"),
        (Facts(a_session(terminated_at=1)), Status.TERMINATED, "it was terminated"),
        (Facts(a_session(terminated_at=1), (WORKS,)), Status.TERMINATED, "it was terminated"),
    ],
)
def test_status_follows_from_the_rows(known: Facts, is_now: Status, because: str) -> None:
    assert status(known) is is_now
    assert why(known) == because


@pytest.mark.parametrize(
    ("fiber", "lives", "orphaned"),
    [
        (WORKS, True, False),
        (WORKS, False, True),
        (OLDER, True, True),
        (GIVEN, True, True),
        (WAITS, True, False),
        (WAITS, False, False),
    ],
)
def test_an_orphan_is_a_fiber_that_nobody_works_on(fiber: FiberRow, lives: bool, orphaned: bool) -> None:
    assert orphans(facts(fiber, lives=lives)) == ([fiber] if orphaned else [])


def test_status_is_a_plain_word() -> None:
    words = ["idle", "running", "rescheduling", "interrupted", "terminated"]
    assert [str(one) for one in Status] == words
