"""A disk that is full, and a database that goes away: a clear error, nothing lost, and on it goes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.postgres import PostgresServer

from .hosts import HostProcess, Refused, Stage
from .world import wait_until

WAITER = {"agent": "Waiter", "key": "one"}


def no_more_pages(host: HostProcess) -> Callable[[], None]:
    """The database may not grow."""
    host.ask("most_pages", count=0)
    return lambda: host.ask("most_pages", count=1_000_000)


def no_more_bytes(host: HostProcess) -> Callable[[], None]:
    """The operating system refuses every write to a file."""
    host.limit_files(0)
    return lambda: host.limit_files(-1)


def fill_up(host: HostProcess) -> str:
    """Start fibers until one is refused. Returns what its starter was told."""
    for _ in range(2000):
        try:
            host.ask("start", agent="Waiter", key="many", method="wait", args=["x" * 3000])
        except Refused as refused:
            if refused.error != "StoreUnavailable":
                raise
            return refused.message
    raise AssertionError("the disk is never full")


async def test_a_full_disk(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    host = stage.host()
    fibers = [host.ask("start", agent="Waiter", key=f"s{n}", method="steps", args=[30]) for n in range(4)]
    stage.world.wait_for("step", number=3, fiber=fibers[0])
    make_room = no_more_pages(host)
    message = fill_up(host)
    assert "nothing that was reported as durable is lost" in message
    assert "the disk is full" in message
    host.wait_for_log("waits for the store")
    make_room()
    async with stage.look() as look:
        for fiber in fibers:
            assert (await look.ended(fiber)).outcome == "done"
        await look.check_logs()
    check_steps(stage, fibers, 30)
    assert host.ask("start", **WAITER, method="steps", args=[1])


async def test_a_disk_that_refuses_every_write(sqlite_stage: Stage) -> None:
    """What happened meanwhile is not forgotten: it is written as soon as there is room."""
    stage = sqlite_stage
    host = stage.host()
    asked = [host.ask("start", agent="Waiter", key=f"s{n}", method="told", args=["door"]) for n in range(4)]
    waiting = host.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("called", times=4)
    stage.world.wait_for("entered")
    make_room = no_more_bytes(host)
    stage.world.open("door")
    assert "nothing that was reported as durable is lost" in fill_up(host)
    wait_until("all the work waits", lambda: len(host.logged("waits for the store")) >= 5)
    make_room()
    assert [host.ask("wait", agent="Waiter", key=f"s{n}", fiber=fiber) for n, fiber in enumerate(asked)] == (
        ["answer"] * 4
    )
    assert host.ask("wait", **WAITER, fiber=waiting) == 0
    async with stage.look() as look:
        assert await look.open_ops() == []
        await look.check_logs()
    assert len(stage.world.seen("called")) == 4


async def test_a_host_that_is_killed_while_the_disk_is_full(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    host = stage.host()
    fibers = [host.ask("start", agent="Waiter", key=f"s{n}", method="steps", args=[15]) for n in range(4)]
    stage.world.wait_for("step", number=3, fiber=fibers[0])
    no_more_pages(host)
    fill_up(host)
    host.kill()
    stage.host()
    async with stage.look() as look:
        for fiber in fibers:
            assert (await look.ended(fiber)).outcome == "done"


def check_steps(stage: Stage, fibers: list[str], count: int) -> None:
    for fiber in fibers:
        steps = [one["number"] for one in stage.world.seen("step", fiber=fiber)]
        assert steps == list(range(count)), "each step was made once"


async def leave_and_come_back(stage: Stage, server: PostgresServer, seconds: float) -> None:
    host = stage.host(settings={"lease_lives": 1.5})
    fibers = [host.ask("start", agent="Waiter", key=f"s{n}", method="steps", args=[60]) for n in range(4)]
    paid = host.ask("start", agent="Waiter", key="paid", method="op", args=["once", "pay"])
    stage.world.wait_for("called", fiber=paid)
    stage.world.wait_for("step", number=5, fiber=fibers[0])
    with server.away("immediate"):
        stage.world.open("pay")
        with pytest.raises(Refused) as refused:
            host.ask("start", **WAITER, method="steps", args=[1], once="meanwhile")
        assert refused.value.error == "StoreUnavailable", refused.value
        wait_until("its effect happened", lambda: stage.world.happened(paid))
        host.wait_for_log("waits for the store")
        until = time.monotonic() + seconds
        wait_until("it was away for long enough", lambda: time.monotonic() > until)
    async with stage.look() as look:
        for fiber in (*fibers, paid):
            assert (await look.ended(fiber)).outcome == "done"
        assert await look.doubts() == []
        await look.check_logs()
        sessions = await look.sessions()
        assert {row.epoch for row in sessions if row.key != "one"} == {1}, "nobody had to take over"
    check_steps(stage, fibers, 60)
    assert stage.world.effects() == {paid: 1}
    again = host.insist("start", **WAITER, method="steps", args=[1], once="meanwhile")
    assert host.ask("wait", **WAITER, fiber=again) == [0]
    assert host.logged("could not be renewed")


async def test_a_database_that_goes_away(postgres_stage: Stage, postgres_server: PostgresServer) -> None:
    await leave_and_come_back(postgres_stage, postgres_server, 2)


@pytest.mark.slow
async def test_a_database_that_goes_away_for_ten_seconds(
    postgres_stage: Stage, postgres_server: PostgresServer
) -> None:
    await leave_and_come_back(postgres_stage, postgres_server, 10)


async def test_a_host_that_is_killed_while_the_database_is_away(
    postgres_stage: Stage, postgres_server: PostgresServer
) -> None:
    stage = postgres_stage
    host = stage.host()
    fibers = [host.ask("start", agent="Waiter", key=f"s{n}", method="steps", args=[30]) for n in range(4)]
    stage.world.wait_for("step", number=5, fiber=fibers[0])
    with postgres_server.away("immediate"):
        host.wait_for_log("waits for the store")
        host.kill()
    stage.host()
    async with stage.look() as look:
        for fiber in fibers:
            assert (await look.ended(fiber)).outcome == "done"
