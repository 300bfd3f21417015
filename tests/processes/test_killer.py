"""One fiber that kills its process, among many that do not."""

from __future__ import annotations

import time

import pytest

from .hosts import Look, Stage

SWIFT = {"patience": {"spacing": [0, 0, 0, 0, 0]}, "tryout": 0.005}


async def supervise(stage: Stage, look: Look, killer: str) -> int:
    """Start hosts until the killer is gone, as a supervisor does. Returns how many died."""
    deaths = 0
    while await look.store.fiber(killer) is not None:
        assert deaths < 10
        host = stage.start(settings=SWIFT)
        while not host.ended and await look.store.fiber(killer) is not None:
            time.sleep(0.01)
        deaths += host.ended
    return deaths


@pytest.mark.timeout(180)
async def test_a_fiber_that_kills_its_process_is_found_and_the_others_finish(stage: Stage) -> None:
    first = stage.host(settings=SWIFT)
    asked = [
        first.send("start", agent="Waiter", key=f"s{n % 50}", method="wait", args=["door"])
        for n in range(200)
    ]
    others = [first.answer(number) for number in asked]
    stage.world.wait_for("entered", times=200)
    first.send("start", agent="Killer", key="killer", method="kill", once="kill")
    assert first.wait() == -9
    async with stage.look() as look:
        (killer,) = [row for row in await look.fibers() if row.name == "kill"]
        assert await supervise(stage, look, killer.id) == 5
        found = await look.ended(killer.id)
        assert found.outcome == "failed"
        assert str(found.error).startswith("Exhausted: ")
        assert [one["attempt"] for one in stage.world.seen("killer")] == [0, 1, 2, 3, 4, 5]
        waiting = [await look.store.fiber(one) for one in others]
        assert max(row.stalled for row in waiting if row is not None) <= 3
        stage.world.open("door")
        outcomes = {(await look.ended(one, seconds=60)).outcome for one in others}
        assert outcomes == {"done"}
        assert await look.fibers() == []
        await look.check_logs()


async def test_two_killers_are_both_found(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    first = stage.host(settings=SWIFT)
    others = [
        first.ask("start", agent="Waiter", key=f"s{n}", method="wait", args=["door"]) for n in range(10)
    ]
    for n in range(2):
        first.send("start", agent="Killer", key=f"killer{n}", method="kill", once="kill")
    assert first.wait() == -9
    async with stage.look() as look:
        killers = [row.id for row in await look.fibers() if row.name == "kill"]
        for killer in killers:
            await supervise(stage, look, killer)
        for killer in killers:
            assert str((await look.ended(killer)).error).startswith("Exhausted: ")
        stage.world.open("door")
        for one in others:
            assert (await look.ended(one)).outcome == "done"
