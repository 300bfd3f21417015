"""A host that kills itself before or after a certain durable write."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from .hosts import Died, HostProcess, Refused, Stage

SESSION = {"agent": "Steps", "key": "one"}
HOW = ("before", "after")
DOUBT = {"after OpenOp": [False], "before SettleOp": [True]}
"""Where a kill leaves a doubt, and whether the op had happened. Nowhere else."""

DONE = {"search": 1, "pay": 1, "publish": 1}
STEPS = ["search", "pay", "publish"]


async def drive(stage: Stage, host: HostProcess) -> tuple[list[str], list[bool]]:
    """A client that wants the work done, and settles doubts truthfully as a person would who looks.
    Returns the result, and for each doubt whether it had happened."""
    truths: list[bool] = []
    fiber = host.insist("start", **SESSION, method="work", once="work")
    async with stage.look() as look:
        while True:
            try:
                return host.ask("wait", **SESSION, fiber=fiber), truths
            except Refused as refused:
                if refused.error != "Interrupted":
                    raise
            doubts = await look.doubts()
            row = await look.store.fiber(fiber)
            assert doubts or row is None or row.parked is None, "it waits, and nothing is in doubt"
            for op in doubts:
                truths.append(stage.world.happened(op.kind))
                host.ask("resolve", **SESSION, op=op.id, happened=truths[-1], result=op.kind)


async def killed_at(stage: Stage, how: str, write: str = "", nth: int = 1) -> None:
    """A life that ends there."""
    host = stage.start(signal={"how": how, "write": write, "nth": nth})
    with pytest.raises(Died):
        await drive(stage, host.ready())
    assert host.wait() == -9


async def finish(stage: Stage) -> list[bool]:
    """A life without a crash, after others. Returns what was in doubt, and the truth about it."""
    host = stage.host()
    result, truths = await drive(stage, host)
    assert result == STEPS
    assert stage.world.effects() == DONE
    async with stage.look() as look:
        assert await look.fibers() == []
        assert await look.open_ops() == []
        await look.check_logs()
    host.terminate()
    assert host.wait() == 0
    return truths


async def test_the_writes_of_a_life(sqlite_stage: Stage) -> None:
    host = sqlite_stage.host(signal={"how": "never"})
    assert await drive(sqlite_stage, host) == (STEPS, [])
    step = ["OpenOp {0}", "SettleOp {0}", "Stash"]
    steps = [one.format(name) for name in STEPS for one in step]
    written = [one["wrote"] for one in host.said if "wrote" in one]
    assert written == ["take", "OpenFiber", *steps, "CloseFiber"]


POINTS = [
    *[f"{how} {write}" for how in ("before", "after") for write in ("take", "OpenFiber", "CloseFiber")],
    *[f"{how} {write} {step}" for how in HOW for write in ("OpenOp", "SettleOp") for step in STEPS],
]


@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_leaves_in_doubt_what_nobody_can_know_and_nothing_else(
    sqlite_stage: Stage, point: str
) -> None:
    how, _, write = point.partition(" ")
    await killed_at(sqlite_stage, how, write)
    assert await finish(sqlite_stage) == DOUBT.get(point.rpartition(" ")[0], [])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_kill_around_a_stash_leaves_no_doubt(sqlite_stage: Stage, how: str, nth: int) -> None:
    await killed_at(sqlite_stage, how, "Stash", nth)
    assert await finish(sqlite_stage) == []


@pytest.mark.parametrize(
    "point",
    [
        "after OpenFiber",
        "before OpenOp pay",
        "after OpenOp pay",
        "before SettleOp pay",
        "after SettleOp pay",
        "after CloseFiber",
    ],
)
async def test_the_same_on_postgres(postgres_stage: Stage, point: str) -> None:
    how, _, write = point.partition(" ")
    await killed_at(postgres_stage, how, write)
    assert await finish(postgres_stage) == DOUBT.get(point.rpartition(" ")[0], [])


async def test_lives_that_are_all_killed_before_they_get_far(sqlite_stage: Stage) -> None:
    """Each is killed around one of its first writes, also when it settles a doubt."""
    patience = {"patience": {"attempts": 50, "spacing": []}}
    for nth, how in itertools.product(range(1, 8), HOW):
        host = sqlite_stage.start(signal={"how": how, "nth": nth}, settings=patience)
        with contextlib.suppress(Died):
            await drive(sqlite_stage, host.ready())
            host.terminate()
        host.wait()
    assert sqlite_stage.kills >= 10
    await finish(sqlite_stage)


@pytest.mark.parametrize("happened", [False, True])
async def test_an_answer_that_comes_before_its_fiber_waits_for_it(
    sqlite_stage: Stage, happened: bool
) -> None:
    """Killed between the doubt and the parking; the answer is there before the next life."""
    stage = sqlite_stage
    await killed_at(stage, *(("before", "SettleOp pay") if happened else ("after", "OpenOp pay")))
    await killed_at(stage, "after", "SettleOp pay")
    async with stage.look() as look:
        (op,) = await look.doubts()
        assert (await look.fiber(op.fiber)).parked is None
        await look.put(op.session, "resolve", op=op.id, happened=happened, result="pay")
    assert await finish(stage) == []


async def test_an_answer_that_comes_while_its_fiber_is_being_parked(sqlite_stage: Stage) -> None:
    stage = sqlite_stage
    await killed_at(stage, "before", "SettleOp pay")
    host = stage.host(signal={"how": "hold", "write": "ParkFiber", "gate": "park"})
    stage.world.wait_for("held")
    async with stage.look() as look:
        (op,) = await look.doubts()
        answered = host.send("resolve", **SESSION, op=op.id, happened=True, result="pay")
        host.ask("nothing")
        stage.world.open("park")
        host.answer(answered)
        await look.ended(op.fiber)
    host.kill()
    assert await finish(stage) == []
