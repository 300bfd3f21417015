"""SIGTERM hands over: at once where that loses nothing, and within the grace period otherwise."""

from __future__ import annotations

import time

import pytest

from .hosts import HostProcess, Refused, Stage

WAITER = {"agent": "Waiter", "key": "one"}
LONG = 60.0
"""The grace period of these tests: longer than any of them may take."""


def hand_over(host: HostProcess) -> None:
    """Much faster than the grace period."""
    began = time.monotonic()
    host.terminate()
    assert host.wait() == 0, host.shown()
    assert time.monotonic() - began < 15


async def test_a_host_without_work_ends_at_once(stage: Stage) -> None:
    hand_over(stage.host())


async def test_a_fiber_without_an_op_is_handed_over_at_once_and_this_is_no_attempt(stage: Stage) -> None:
    host = stage.host(settings={"grace": LONG})
    fiber = host.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("entered")
    for times in (2, 3, 4):
        hand_over(host)
        host = stage.host(settings={"grace": LONG})
        assert stage.world.wait_for("entered", times=times)["attempt"] == 0
    stage.world.open("door")
    assert host.ask("wait", **WAITER, fiber=fiber) == 0


@pytest.mark.parametrize("effect", ["read", "keyed"])
async def test_a_read_or_keyed_op_is_cancelled_and_made_again(stage: Stage, effect: str) -> None:
    host = stage.host(settings={"grace": LONG})
    fiber = host.ask("start", **WAITER, method="op", args=[effect, "door"])
    first = stage.world.wait_for("called")
    hand_over(host)
    host = stage.host()
    again = stage.world.wait_for("called", times=2)
    assert again["op"] == first["op"]
    stage.world.open("door")
    assert host.ask("wait", **WAITER, fiber=fiber) == fiber
    assert stage.world.effects() == {fiber: 1}
    assert {one["attempt"] for one in stage.world.seen("entered")} == {0}


async def test_a_once_op_that_can_be_verified_is_cut(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    host = stage.host(settings={"grace": LONG})
    fiber = host.ask("start", **WAITER, method="op", args=["once", "door", True])
    stage.world.wait_for("called")
    hand_over(host)
    stage.world.open("door")
    assert stage.host().ask("wait", **WAITER, fiber=fiber) == fiber
    assert stage.world.effects() == {fiber: 1}


async def test_a_once_op_may_finish_within_the_grace_period(stage: Stage) -> None:
    host = stage.host(settings={"grace": LONG})
    fiber = host.ask("start", **WAITER, method="op", args=["once", "door"])
    stage.world.wait_for("called")
    host.terminate()
    with pytest.raises(Refused, match="Draining"):
        refused_once_it_drains(host)
    assert not host.ended
    stage.world.open("door")
    assert host.wait() == 0
    assert stage.world.effects() == {fiber: 1}
    host = stage.host()
    assert host.ask("wait", **WAITER, fiber=fiber) == fiber
    assert len(stage.world.seen("called")) == 1
    async with stage.look() as look:
        assert await look.open_ops() == []


def refused_once_it_drains(host: HostProcess) -> None:
    """Ask for more work until it takes no more."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        host.ask("start", agent="Waiter", key="other", method="steps", args=[1])


async def test_a_second_sigterm_ends_the_grace_period_and_leaves_a_doubt(stage: Stage) -> None:
    host = stage.host(settings={"grace": LONG})
    fiber = host.ask("start", **WAITER, method="acted", args=["door"])
    stage.world.wait_for("acted")
    host.terminate()
    with pytest.raises(Refused, match="Draining"):
        refused_once_it_drains(host)
    assert not host.ended
    hand_over(host)
    host = stage.host()
    host.wait_for_log("waits for an answer")
    async with stage.look() as look:
        (op,) = await look.doubts()
        row = await look.fiber(fiber)
        assert (op.fiber, row.attempt) == (fiber, 0)
        host.ask("resolve", **WAITER, op=op.id, happened=True, result="it did")
        assert host.ask("wait", **WAITER, fiber=fiber) == "it did"
    assert stage.world.effects() == {fiber: 1}


async def test_the_grace_period_ends_by_itself(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    host = stage.host(settings={"grace": 0.5})
    host.ask("start", **WAITER, method="acted", args=["door"])
    stage.world.wait_for("acted")
    hand_over(host)
    stage.host().wait_for_log("waits for an answer")
    async with stage.look() as look:
        assert len(await look.doubts()) == 1


async def test_another_host_goes_on_without_waiting_for_the_lease(postgres_stage: Stage) -> None:
    stage = postgres_stage
    lasting = {"lease_lives": 120.0}
    first, second = stage.host(settings=lasting), stage.host(settings=lasting)
    fibers = [first.ask("start", agent="Waiter", key=f"s{n}", method="wait", args=["door"]) for n in range(5)]
    stage.world.wait_for("entered", times=5)
    hand_over(first)
    stage.world.wait_for("entered", times=10)
    stage.world.open("door")
    async with stage.look() as look:
        for fiber in fibers:
            assert (await look.ended(fiber)).value == b"0"
    assert {one["pid"] for one in stage.world.seen("entered")[5:]} == {second.pid}
