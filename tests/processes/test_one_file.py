"""An SQLite file has one host at a time."""

from __future__ import annotations

import pytest

from .hosts import Refused, Stage

WAITER = {"agent": "Waiter", "key": "one"}


async def test_a_second_host_on_one_file_is_told_who_is_the_first(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    first = stage.host()
    fiber = first.ask("start", **WAITER, method="wait", args=["door"])
    with pytest.raises(Refused, match="StoreInUse") as refused:
        stage.host()
    assert f"process {first.pid}" in refused.value.message
    assert "stopped" not in refused.value.message
    stage.world.open("door")
    assert first.ask("wait", **WAITER, fiber=fiber) == 0


async def test_a_stopped_first_host_is_named_as_stopped(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    first = stage.host()
    first.stop()
    with pytest.raises(Refused, match="StoreInUse") as refused:
        stage.host()
    assert f"process {first.pid}" in refused.value.message
    assert f"kill -CONT {first.pid}" in refused.value.message


async def test_death_frees_the_file_at_once(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    first = stage.host()
    fiber = first.ask("start", **WAITER, method="wait", args=["door"])
    stage.world.wait_for("entered")
    first.kill()
    stage.world.open("door")
    assert stage.host().ask("wait", **WAITER, fiber=fiber) == 1


async def test_an_onlooker_puts_something_in_and_the_host_hears_of_it(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    fiber = stage.host().ask("start", **WAITER, method="wait", args=["door"])
    async with stage.look() as look:
        (session,) = await look.sessions()
        await look.put(session.id, "cancel", fiber=fiber)
        assert (await look.ended(fiber, seconds=5)).outcome == "cancelled"


async def test_onlookers_and_a_host_may_make_the_file_together(sqlite_stage: Stage) -> None:
    """All of them find no schema, and all of them bring it up to date."""
    hosts = [sqlite_stage.start() for _ in range(3)]
    for _ in range(20):
        async with sqlite_stage.look() as look:
            assert await look.sessions() == []
    outcomes: list[str] = []
    for host in hosts:
        try:
            host.ready()
            outcomes.append("host")
        except Refused as refused:
            outcomes.append(refused.error)
    assert sorted(outcomes) == ["StoreInUse", "StoreInUse", "host"]
