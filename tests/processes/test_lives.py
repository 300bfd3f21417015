"""What becomes of a fiber whose host is killed: queued, running, waiting, cancelled, in its hook, parked."""

from __future__ import annotations

import time

import pytest

from .hosts import Died, Refused, Stage

WAITER = {"agent": "Waiter", "key": "one"}
HOOKED = {"agent": "Hooked", "key": "one"}


async def test_a_queued_fiber_is_run(stage: Stage) -> None:
    """Killed when it was accepted, and had not run yet."""
    host = stage.start(signal={"how": "after", "write": "OpenFiber"})
    with pytest.raises(Died):
        host.ready().ask("start", **WAITER, method="steps", args=[2], once="work")
    async with stage.look() as look:
        (row,) = await look.fibers()
        assert stage.world.seen() == []
        stage.host()
        assert (await look.ended(row.id)).value == b"[0,1]"
    assert [one["attempt"] for one in stage.world.seen("entered")] == [1]


async def test_an_accepted_fiber_is_not_lost(stage: Stage) -> None:
    """Killed as soon as its starter was told."""
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="steps", args=[3])
    host.kill()
    stage.host()
    async with stage.look() as look:
        assert (await look.ended(fiber)).value == b"[0,1,2]"


async def test_a_running_fiber_goes_on_with_the_step_it_was_in(stage: Stage) -> None:
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="steps", args=[20])
    stage.world.wait_for("step", number=9)
    host.kill()
    cut = [one["number"] for one in stage.world.seen("step")][-1]
    stage.host()
    async with stage.look() as look:
        assert (await look.ended(fiber)).outcome == "done"
    steps = [one["number"] for one in stage.world.seen("step")]
    assert steps in ([*range(cut + 1), *range(cut, 20)], list(range(20)))


async def test_a_waiting_fiber_waits_on(stage: Stage) -> None:
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("entered")
    host.kill()
    stage.host()
    stage.world.wait_for("entered", attempt=1)
    stage.world.open("door")
    async with stage.look() as look:
        assert (await look.ended(fiber)).value == b"1"


async def test_a_cancelled_fiber_stays_cancelled(stage: Stage) -> None:
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("entered")
    assert host.ask("cancel", **WAITER, fiber=fiber) is True
    host.kill()
    second = stage.host()
    other = second.insist("start", **WAITER, method="steps", args=[1])
    assert second.ask("wait", **WAITER, fiber=other) == [0]
    with pytest.raises(Refused, match="FiberCancelled"):
        second.ask("wait", **WAITER, fiber=fiber)
    assert second.ask("cancel", **WAITER, fiber=fiber) is False
    assert len(stage.world.seen("entered", fiber=fiber)) == 1


async def test_a_fiber_that_is_cancelled_before_it_is_entered_again_is_not_entered(
    sqlite_stage: Stage,
) -> None:
    stage = sqlite_stage
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("entered")
    host.kill()
    host = stage.host(signal={"how": "hold", "write": "EnterFiber", "gate": "enter"})
    stage.world.wait_for("held")
    assert host.ask("cancel", **WAITER, fiber=fiber) is True
    stage.world.open("enter")
    other = host.ask("start", **WAITER, method="steps", args=[3])
    assert host.ask("wait", **WAITER, fiber=other) == [0, 1, 2]
    assert len(stage.world.seen("entered", fiber=fiber)) == 1
    async with stage.look() as look:
        assert await look.fibers() == []
        assert (await look.ended(fiber)).outcome == "cancelled"


async def test_a_cancel_that_was_accepted_while_no_host_lived(stage: Stage) -> None:
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("entered")
    host.kill()
    async with stage.look() as look:
        (session,) = await look.sessions()
        await look.put(session.id, "cancel", fiber=fiber)
        stage.host()
        assert (await look.ended(fiber)).outcome == "cancelled"
        assert await look.fibers() == []


# --- hooks


async def test_a_hook_that_kills_its_process_is_tried_five_times(stage: Stage) -> None:
    stage.host().ask("call", **HOOKED, method="begin", args=["deadly"])
    fiber = stage.world.wait_for("stashed")["fiber"]
    stage.hosts[-1].kill()
    async with stage.look() as look:
        while await look.store.fiber(fiber) is not None:
            assert len(stage.hosts) < 8
            host = stage.start()
            while not host.ended and await look.store.fiber(fiber) is not None:
                time.sleep(0.01)
        ended = await look.ended(fiber)
        assert ended.outcome == "failed"
        assert str(ended.error).startswith("Exhausted: ")
        (session,) = await look.sessions()
        assert [row.type for row in await look.store.events(session.id)] == ["fiber.failed"]
    assert [one["attempt"] for one in stage.world.seen("hook")] == [1, 2, 3, 4, 5]


async def test_a_fiber_whose_hook_was_killed_again_and_again_keeps_its_stash(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    fiber = stage.host().ask("call", **HOOKED, method="begin", args=["patient"])
    stage.world.wait_for("stashed")
    stage.hosts[-1].kill()
    for _ in range(3):
        assert stage.start().wait() == -9
    assert stage.host().ask("wait", **HOOKED, fiber=fiber) == [{"from": "patient"}, 4]
    assert [one["attempt"] for one in stage.world.seen("hook")] == [1, 2, 3, 4]


# --- fibers that wait for an answer


@pytest.fixture
def parked(stage: Stage) -> str:
    """A fiber whose `once` op had its effect, and was cut before anyone heard of it."""
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="acted", args=["late"])
    stage.world.wait_for("acted")
    host.kill()
    host = stage.host()
    host.wait_for_log("waits for an answer")
    host.kill()
    return fiber


async def test_a_parked_fiber_stays_parked(stage: Stage, parked: str) -> None:
    async with stage.look() as look:
        before = await look.fiber(parked)
        assert before.parked is not None
        for _ in range(3):
            host = stage.host()
            other = host.insist("start", **WAITER, method="steps", args=[1])
            assert host.ask("wait", **WAITER, fiber=other) == [0]
            host.kill()
            assert await look.fiber(parked) == before
        (op,) = await look.doubts()
        host = stage.host()
        host.insist("resolve", **WAITER, op=op.id, happened=True, result="yes")
        assert host.ask("wait", **WAITER, fiber=parked) == "yes"
    assert stage.world.effects() == {parked: 1}
    assert len(stage.world.seen("entered", fiber=parked)) == 3


async def test_of_two_answers_at_once_one_counts(sqlite_stage: Stage) -> None:
    """Two people press the same button; the fiber is entered once."""
    stage = sqlite_stage
    host = stage.host()
    fiber = host.ask("start", **WAITER, method="acted", args=["late"])
    stage.world.wait_for("acted")
    host.kill()
    host = stage.host()
    host.wait_for_log("waits for an answer")
    asked = [host.send("answer", **WAITER, fiber=fiber, said="retry") for _ in range(5)]
    refused: list[str] = []
    for number in asked:
        try:
            host.answer(number)
        except Refused as one:
            refused.append(one.error)
    assert refused == ["NotFound"] * 4
    stage.world.open("late")
    assert host.ask("wait", **WAITER, fiber=fiber) == fiber
    assert len(stage.world.seen("entered", fiber=fiber)) == 3
