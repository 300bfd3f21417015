"""Several hosts on one database: one owner at a time, and a stopped one is fenced when it goes on (P3)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator

import pytest

from perdure import OwnedElsewhere, Runtime, Settings
from perdure.core.identity import session_id

from . import agents
from .hosts import HostProcess, Refused, Stage
from .world import wait_until

WAITER = {"agent": "Waiter", "key": "one"}
STEPS = {"agent": "Steps", "key": "one"}
BRIEF = {"lease_lives": 2.0}
HOUR = 3_600_000


@contextlib.contextmanager
def stopped(host: HostProcess) -> Iterator[None]:
    """The process stands still within the block, and goes on after it."""
    host.stop()
    try:
        yield
    finally:
        host.go_on()


async def test_a_stopped_owner_is_replaced_and_then_fenced(postgres_stage: Stage) -> None:
    stage = postgres_stage
    first = stage.host(settings=BRIEF)
    fibers = [first.ask("start", **WAITER, method="wait", args=["door"]) for _ in range(3)]
    stage.world.wait_for("entered", times=3)
    second = stage.host(settings=BRIEF)
    async with stage.look() as look:
        with stopped(first):
            stage.world.wait_for("entered", times=6)
            stage.world.open("door")
            for fiber in fibers:
                assert (await look.ended(fiber)).value == b"1"
            after = await look.everything()
        first.wait_for_log("was taken over by another host")
        first.ask("nothing")
        assert await look.everything() == after
    assert len(first.logged("taken over")) == 1
    assert len(second.logged("taken over")) == 0


async def test_a_once_op_is_not_begun_by_an_owner_who_was_stopped_past_its_lease(
    postgres_stage: Stage,
) -> None:
    """It stops when the intent is on disk, before it touches the world."""
    stage = postgres_stage
    first = stage.start(
        settings=BRIEF, signal={"how": "after", "write": "OpenOp pay", "number": signal.SIGSTOP}
    )
    fiber = first.ready().ask("start", **STEPS, method="work")
    wait_until("it has stopped", first.is_stopped)
    second = stage.host(settings=BRIEF)
    async with stage.look() as look:
        second.wait_for_log("waits for an answer")
        (op,) = await look.doubts()
        assert (op.kind, stage.world.happened("pay")) == ("pay", False)
        second.ask("resolve", **STEPS, op=op.id, happened=False)
        assert (await look.ended(fiber)).outcome == "done"
        after = await look.everything()
        first.go_on()
        first.wait_for_log("was taken over by another host")
        first.ask("nothing")
        assert await look.everything() == after
    assert stage.world.effects() == {"search": 1, "pay": 1, "publish": 1}


async def test_an_effect_whose_owner_was_stopped_before_it_could_say_so(postgres_stage: Stage) -> None:
    """The op has happened, and its settlement comes too late: it is in doubt, and is not run again."""
    stage = postgres_stage
    first = stage.start(
        settings=BRIEF, signal={"how": "before", "write": "SettleOp pay", "number": signal.SIGSTOP}
    )
    fiber = first.ready().ask("start", **STEPS, method="work")
    wait_until("it has stopped", first.is_stopped)
    second = stage.host(settings=BRIEF)
    second.wait_for_log("waits for an answer")
    async with stage.look() as look:
        before = await look.everything()
        first.go_on()
        first.wait_for_log("was taken over by another host")
        first.ask("nothing")
        assert await look.everything() == before
        (op,) = await look.doubts()
        second.ask("resolve", **STEPS, op=op.id, happened=stage.world.happened("pay"), result="pay")
        assert (await look.ended(fiber)).outcome == "done"
    assert stage.world.effects() == {"search": 1, "pay": 1, "publish": 1}


async def test_a_replaced_host_may_own_the_session_again(postgres_stage: Stage) -> None:
    stage = postgres_stage
    first = stage.host(settings=BRIEF)
    fiber = first.ask("start", **WAITER, method="wait", args=["door"])
    second = stage.host(settings=BRIEF)
    with stopped(first):
        stage.world.wait_for("entered", attempt=1, fiber=fiber)
    second.kill()
    stage.world.wait_for("entered", attempt=2, fiber=fiber)
    stage.world.open("door")
    assert first.insist("wait", **WAITER, fiber=fiber) == 2


# --- claims


async def test_of_twelve_hosts_that_claim_a_session_one_wins(postgres_stage: Stage) -> None:
    stage = postgres_stage
    patient = {"lease_lives": 10.0, "hold": 1.0}
    hosts = [stage.start(settings=patient) for _ in range(12)]
    for host in hosts:
        host.ready(60)
    asked = [host.send("start", **WAITER, method="wait", args=["door"]) for host in hosts]
    won: list[str] = []
    refused: list[str] = []
    for host, number in zip(hosts, asked, strict=True):
        try:
            won.append(host.answer(number, 60))
        except Refused as one:
            refused.append(one.error)
    assert len(won) == 1
    assert refused == ["OwnedElsewhere"] * 11
    assert len(stage.world.wait_for("entered") and stage.world.seen("entered")) == 1
    async with stage.look() as look:
        (session,) = await look.sessions()
        assert (session.id, session.epoch) == (session_id("Waiter", "one"), 1)
        stage.world.open("door")
        await look.ended(won[0])


async def test_of_twelve_runtimes_that_claim_a_session_one_wins(postgres_stage: Stage) -> None:
    agents.WORLD = postgres_stage.world
    async with contextlib.AsyncExitStack() as stack:
        runtimes = [
            await stack.enter_async_context(Runtime(postgres_stage.url, settings=Settings(hold=0.3)))
            for _ in range(12)
        ]
        sessions = [runtime.session(agents.Waiter, "one") for runtime in runtimes]
        starts = [session.start(agents.Waiter.wait, "door") for session in sessions]
        answers = await asyncio.gather(*starts, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, OwnedElsewhere)]
        assert len(refused) == 11
        (won,) = [one for one in answers if not isinstance(one, BaseException)]
        postgres_stage.world.open("door")
        assert await won == 0
        assert len(postgres_stage.world.seen("entered")) == 1


async def test_of_several_heirs_of_a_dead_host_one_takes_over(postgres_stage: Stage) -> None:
    stage = postgres_stage
    hosts = [stage.start(settings=BRIEF) for _ in range(4)]
    for host in hosts:
        host.ready(60)
    fibers = [
        hosts[0].ask("start", agent="Waiter", key=f"s{n}", method="wait", args=["door"]) for n in range(8)
    ]
    stage.world.wait_for("entered", times=8)
    hosts[0].kill()
    stage.world.wait_for("entered", times=16)
    stage.world.open("door")
    async with stage.look() as look:
        for fiber in fibers:
            assert (await look.ended(fiber)).value == b"1"
        assert {row.epoch for row in await look.sessions()} == {2}
    assert len(stage.world.seen("entered")) == 16


# --- clocks


@pytest.mark.parametrize("off_by", [HOUR, -HOUR])
async def test_a_host_whose_clock_is_an_hour_off_does_no_harm(postgres_stage: Stage, off_by: int) -> None:
    stage = postgres_stage
    right = stage.host(settings={"lease_lives": 3.0})
    fiber = right.ask("start", **WAITER, method="wait", args=["door"])
    right.ask("call", agent="Ringer", key="later", method="set_once", args=[1800])
    wrong = stage.host(settings={"lease_lives": 3.0}, wall_off_by=off_by)
    due_at = wrong.ask("call", agent="Ringer", key="now", method="set_once", args=[0.5])
    rang = stage.world.wait_for("rang")
    async with stage.look() as look:
        assert rang["pid"] == wrong.pid
        assert abs(look.store.now() - time.time() * 1000) < 60_000
        assert due_at <= look.store.now() <= due_at + 20_000
        taken_over = wrong.insist("start", agent="Waiter", key="two", method="wait", args=["door"])
        stage.world.wait_for("entered", fiber=taken_over)
        wait_until("the wrong one has swept", lambda: look.store.now() > due_at + 2_000)
        row = await look.fiber(fiber)
        assert (row.epoch, row.attempt) == (1, 0), "a living host was replaced"
        (alarm,) = await look.store.alarms(session_id("Ringer", "later"))
        assert 1_700_000 < alarm.due_at - look.store.now() < 1_800_000
        wrong.kill()
        stage.world.wait_for("entered", fiber=taken_over, attempt=1)
        stage.world.open("door")
        assert (await look.ended(fiber)).value == b"0"
        assert (await look.ended(taken_over)).value == b"1"
    assert len(stage.world.seen("rang")) == 1
