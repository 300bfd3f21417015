"""Cut fibers are taken up by themselves, boundedly (P10), and never by code that does not know them."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import (
    Agent,
    Exhausted,
    Fiber,
    FiberCancelled,
    FiberFailed,
    Interrupted,
    Patience,
    Session,
    Settings,
    Status,
    fiber,
)
from perdure.engine.values import decode
from perdure.testing.clock import ManualClock

from .lives import Lives, World, drive, settle, soon, until


class Order(BaseModel):
    what: str


class Worker(Agent):
    world: World

    @fiber
    async def work(self, f: Fiber, topic: str, *, depth: int = 1) -> list[Any]:
        self.world.do(f"life {f.attempt}")
        if f.stashed is None:
            await f.stash({"topic": topic, "depth": depth})
        await self.world.gate("go on").wait()
        return [topic, depth, f.stashed, f.attempt]

    @fiber
    async def hang(self, f: Fiber) -> str:
        self.world.do("hang")
        await self.world.gate("go on").wait()
        return "done"

    @fiber
    async def advance(self, f: Fiber) -> None:
        """Gets a step further in every life."""
        await f.stash((f.stashed or 0) + 1)
        self.world.do("advance")
        await self.world.gate("never").wait()

    @fiber
    async def repeat(self, f: Fiber) -> None:
        """Stashes the same in every life."""
        await f.stash("the same")
        self.world.do("repeat")
        await self.world.gate("never").wait()

    @fiber
    async def order(self, f: Fiber, order: Any) -> Any:
        await self.world.gate("go on").wait()
        return order


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Worker.world = world


async def next_life(lives: Lives, *agents: type[Agent]) -> Session[Any]:
    await lives.kill(lives.here)
    rt = await lives.begin(*agents)
    return rt.session(agents[0], "one")


async def row_of(session: Session[Any]) -> Any:
    (row,) = await session.fibers()
    return row


# --- the default: a method is entered again


async def test_a_method_is_entered_again_with_its_arguments_and_its_stash(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.work, "snow", depth=3)
    stash = {"topic": "snow", "depth": 3}
    await until(lambda: _stashed(lives, running.id, stash))
    session = await next_life(lives, Worker)
    world.open("go on")
    assert await soon(session.wait(running.id)) == ["snow", 3, stash, 1]
    assert [one.outcome for one in await session.ended()] == ["done"]


async def _stashed(lives: Lives, running: str, stash: Any) -> bool:
    row = await lives.store.fiber(running)
    return row is not None and decode(row.stash) == stash


async def test_arguments_are_the_same_values_in_every_life(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    session = rt.session(Worker, "one")
    started = [
        await session.start(Worker.order, value) for value in ((1, 2), Order(what="book"), {"a": None})
    ]
    session = await next_life(lives, Worker)
    world.open("go on")
    expected = [[1, 2], {"what": "book"}, {"a": None}]
    assert [await soon(session.wait(one.id)) for one in started] == expected


@pytest.mark.not_evicted("the change of an argument is seen by the same body only")
async def test_an_argument_that_is_changed_after_the_start_is_not_changed_in_the_fiber(
    lives: Lives, world: World
) -> None:
    rt = await lives.begin(Worker)
    value = {"a": 1}
    running = await rt.session(Worker, "one").start(Worker.order, value)
    value["a"] = 2
    world.open("go on")
    assert await soon(running) == {"a": 1}


async def test_recovery_needs_no_caller(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    await rt.session(Worker, "one").start(Worker.hang)
    await until(lambda: world.did["hang"])
    before = world.did["hang"]
    await lives.kill(rt)
    await lives.begin(Worker)
    await until(lambda: world.did["hang"] > before)


async def test_all_sessions_are_recovered(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    started = [(f"s{n}", await rt.session(Worker, f"s{n}").start(Worker.hang)) for n in range(30)]
    await lives.kill(rt)
    rt = await lives.begin(Worker)
    world.open("go on")
    assert [await soon(rt.session(Worker, key).wait(one.id)) for key, one in started] == ["done"] * 30


async def test_a_recovered_session_is_rescheduling_until_it_runs(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    session = rt.session(Worker, "one")
    await session.start(Worker.hang)
    assert await session.status() == Status.RUNNING
    await lives.kill(rt)

    class Other(Agent): ...

    rt = await lives.begin(Other)
    session = rt.session(Worker, "one")
    assert await session.status() == Status.RESCHEDULING
    assert await session.why() == "1 fiber waits to be recovered"


async def test_a_host_leaves_agents_that_it_does_not_know_alone(lives: Lives, world: World) -> None:
    class Other(Agent): ...

    rt = await lives.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.hang)
    row = await lives.store.fiber(running.id)
    await lives.kill(rt)
    rt = await lives.begin(Other)
    await settle()
    assert await lives.store.fiber(running.id) == row
    await lives.kill(rt)
    rt = await lives.begin(Worker)
    world.open("go on")
    assert await soon(rt.session(Worker, "one").wait(running.id)) == "done"


# --- attempts


async def test_five_attempts_without_progress_and_then_a_typed_error(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.hang)
    for attempt in range(1, 6):
        await until(lambda: world.did["hang"])
        world.did.clear()
        session = await next_life(lives, Worker)
        await until(lambda: world.did["hang"])
        row = await row_of(session)
        assert (row.attempt, row.stalled) == (attempt, attempt)
    session = await next_life(lives, Worker)
    with pytest.raises((Exhausted, FiberFailed), match="recovered again and again without progress"):
        await soon(session.wait(running.id))
    with pytest.raises(FiberFailed, match=r"Exhausted: .*5 attempts without progress"):
        await session.wait(running.id)
    assert await session.fibers() == []
    assert await session.status() == Status.IDLE
    (failed,) = [decode(one.body) for one in await session.events() if one.type == "fiber.failed"]
    assert (failed["fiber"], failed["name"]) == (running.id, "hang")
    assert await soon(session.start(Worker.hang)), "the session goes on"


async def test_the_attempt_is_committed_before_the_fiber_is_entered(lives: Lives) -> None:
    seen: list[Any] = []

    class Looking(Agent):
        @fiber
        async def look(self, f: Fiber) -> None:
            row = await lives.store.fiber(f.id)
            assert row is not None
            seen.append((f.attempt, row.attempt, row.stalled, row.host == lives.here.host.id))
            await asyncio.Event().wait()

    rt = await lives.begin(Looking)
    await rt.session(Looking, "one").start(Looking.look)
    for attempt in range(4):
        await until(lambda: len(seen) > attempt)  # noqa: B023
        await next_life(lives, Looking) if attempt < 3 else None
    assert seen == [(0, 0, 0, True), (1, 1, 1, True), (2, 2, 2, True), (3, 3, 3, True)]


@pytest.mark.not_evicted("evicted at every stash, it stashes for ever")
async def test_a_stash_with_other_content_is_progress(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    await rt.session(Worker, "one").start(Worker.advance)
    await until(lambda: world.did["advance"])
    for attempt in range(1, 9):
        world.did.clear()
        session = await next_life(lives, Worker)
        await until(lambda: world.did["advance"])
        row = await row_of(session)
        assert (row.attempt, row.stalled) == (attempt, 0)


@pytest.mark.not_evicted("evicted at every stash, it stashes for ever")
async def test_a_stash_with_the_same_content_is_no_progress(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.repeat)
    await until(lambda: world.did["repeat"])
    for attempt in range(1, 6):
        world.did.clear()
        session = await next_life(lives, Worker)
        await until(lambda: world.did["repeat"])
        assert (await row_of(session)).stalled == attempt
    session = await next_life(lives, Worker)
    with pytest.raises((Exhausted, FiberFailed)):
        await soon(session.wait(running.id))


async def test_a_settled_op_is_progress_and_a_replayed_one_is_not(lives: Lives, world: World) -> None:
    class Stepping(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            for step in range(100):
                await f.op(f"step {step}", world.do, "step", effect="once")
                world.do("between")
                await world.gate(f"after {step}").wait()

    rt = await lives.begin(Stepping)
    await rt.session(Stepping, "one").start(Stepping.work)
    await until(lambda: world.did["between"])
    session = await next_life(lives, Stepping)
    await until(lambda: _stalled(session, 1))
    session = await next_life(lives, Stepping)
    await until(lambda: _stalled(session, 2))
    world.open("after 0")
    await until(lambda: _stalled(session, 0))
    assert (await row_of(session)).attempt == 2
    assert world.did["step"] == 2


async def _stalled(session: Session[Any], stalled: int) -> bool:
    return (await row_of(session)).stalled == stalled


@pytest.mark.not_evicted("evicted at every stash, it stashes for ever")
async def test_fifty_attempts_end_a_fiber_whatever_it_did(lives: Lives, world: World) -> None:
    patience = Patience(attempts=5, attempts_ever=7, spacing=())
    lives.settings = Settings(patience=patience, tryout=0.0, grace=0.0)
    rt = await lives.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.advance)
    await until(lambda: world.did["advance"])
    for _ in range(7):
        world.did.clear()
        await next_life(lives, Worker)
        await until(lambda: world.did["advance"])
    session = await next_life(lives, Worker)
    with pytest.raises((Exhausted, FiberFailed), match="7 attempts in all"):
        await soon(session.wait(running.id))


async def test_an_orderly_end_is_no_attempt(lives: Lives, world: World) -> None:
    rt = await lives.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.hang)
    for _ in range(8):
        await until(lambda: world.did["hang"])
        world.did.clear()
        await lives.leave(rt)
        row = await lives.store.fiber(running.id)
        assert row is not None
        assert row.host is None
        rt = await lives.begin(Worker)
    await until(lambda: world.did["hang"])
    row = await row_of(rt.session(Worker, "one"))
    assert (row.attempt, row.stalled) == (0, 0)
    world.open("go on")
    assert await soon(rt.session(Worker, "one").wait(running.id)) == "done"


# --- spacing


async def test_attempts_are_spaced_by_the_clock(timed: Lives, clock: ManualClock, world: World) -> None:
    rt = await timed.begin(Worker)
    await rt.session(Worker, "one").start(Worker.hang)
    await until(lambda: world.did["hang"])
    for pause in (0, 1, 5, 25, 60):
        world.did.clear()
        session = await next_life(timed, Worker)
        await clock.settle()
        if pause:
            assert not world.did["hang"]
            await clock.advance(pause - 0.5)
            assert not world.did["hang"], f"entered before {pause} s"
            await clock.advance(0.5)
        await until(lambda: world.did["hang"])
    assert (await row_of(session)).stalled == 5


async def test_a_fiber_that_waits_for_its_next_attempt_can_be_cancelled(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    rt = await timed.begin(Worker)
    running = await rt.session(Worker, "one").start(Worker.hang)
    await until(lambda: world.did["hang"])
    await next_life(timed, Worker)
    await until(lambda: world.did["hang"] == 2)
    session = await next_life(timed, Worker)
    await clock.settle()
    assert await session.cancel(running.id) is True
    with pytest.raises(FiberCancelled):
        await soon(session.wait(running.id))
    await clock.advance(120)
    assert world.did["hang"] == 2
    assert await session.fibers() == []
    assert [one.outcome for one in await session.ended()] == ["cancelled"]


async def test_a_request_does_not_wait_for_recovery(timed: Lives, clock: ManualClock, world: World) -> None:
    rt = await timed.begin(Worker)
    await rt.session(Worker, "one").start(Worker.hang)
    await until(lambda: world.did["hang"])
    await next_life(timed, Worker)
    await until(lambda: world.did["hang"] == 2)
    session = await next_life(timed, Worker)
    assert await soon(session.call(Worker.alarms)) == []
    assert world.did["hang"] == 2


# --- alone


async def test_from_the_third_attempt_on_fibers_enter_one_at_a_time(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    timed.settings = Settings(lease_lives=1e9, tryout=0.5, patience=Patience(spacing=()))
    rt = await timed.begin(Worker)
    for n in range(3):
        await rt.session(Worker, f"s{n}").start(Worker.hang)
    await until(lambda: world.did["hang"] == 3)
    for _ in range(2):
        world.did.clear()
        await next_life(timed, Worker)
        await until(lambda: world.did["hang"] == 3)
    world.did.clear()
    await next_life(timed, Worker)
    await until(lambda: world.did["hang"] == 1)
    await settle()
    assert world.did["hang"] == 1
    await clock.advance(0.5)
    assert world.did["hang"] == 2
    await clock.advance(0.5)
    assert world.did["hang"] == 3


async def test_a_fiber_that_gets_somewhere_lets_the_next_one_enter_at_once(
    timed: Lives, world: World
) -> None:
    timed.settings = Settings(lease_lives=1e9, tryout=3600.0, patience=Patience(spacing=(), alone_from=1))
    rt = await timed.begin(Worker)
    for n in range(3):
        await rt.session(Worker, f"s{n}").start(Worker.advance)
    await until(lambda: world.did["advance"] == 3)
    world.did.clear()
    await next_life(timed, Worker)
    await until(lambda: world.did["advance"] == 3)


async def test_a_death_while_one_is_tried_out_counts_for_that_one_only(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    timed.settings = Settings(lease_lives=1e9, tryout=3600.0, patience=Patience(spacing=(), alone_from=1))
    rt = await timed.begin(Worker)
    started = {(await rt.session(Worker, f"s{n}").start(Worker.hang)).id: f"s{n}" for n in range(3)}
    await until(lambda: world.did["hang"] == 3)
    for death in range(1, 6):
        world.did.clear()
        await next_life(timed, Worker)
        await until(lambda: world.did["hang"] >= 1)
        await settle()
        rows = [await timed.store.fiber(one) for one in started]
        assert max(row.stalled for row in rows if row is not None) == death
    world.did.clear()
    await next_life(timed, Worker)

    async def given_up() -> set[str]:
        return {one for one in started if await timed.store.fiber(one) is None}

    dead = await until(given_up)
    assert len(dead) == 1
    world.open("go on")
    for one in started.keys() - dead:
        assert await drive(clock, timed.here.session(Worker, started[one]).wait(one)) == "done"


# --- code that does not know the fiber any more


async def test_an_unknown_name_parks_the_fiber_and_uses_no_attempts(lives: Lives, world: World) -> None:
    class Old(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            await world.gate("go on").wait()
            return "old"

    class New(Agent): ...

    class Fixed(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            return "fixed"

    New.__name__ = Fixed.__name__ = "Old"
    rt = await lives.begin(Old)
    running = await rt.session(Old, "one").start(Old.work)
    for _ in range(7):
        session = await next_life(lives, New)
        with pytest.raises(Interrupted, match="Old has no fiber 'work'"):
            await soon(session.wait(running.id))
    row = await row_of(session)
    assert (row.attempt, row.stalled) == (0, 0)
    assert decode(row.parked)["why"] == "NotFound"
    assert await session.status() == Status.INTERRUPTED
    await session.answer(running.id, "retry")
    with pytest.raises(Interrupted):
        await soon(session.wait(running.id))
    session = await next_life(lives, Fixed)
    with pytest.raises(Interrupted):
        await soon(session.wait(running.id))
    await session.answer(running.id, "retry")
    assert await soon(session.wait(running.id)) == "fixed"


async def test_an_unknown_fiber_can_be_abandoned(lives: Lives, world: World) -> None:
    class Old(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            await world.gate("go on").wait()

    class New(Agent): ...

    New.__name__ = "Old"
    rt = await lives.begin(Old)
    running = await rt.session(Old, "one").start(Old.work)
    session = await next_life(lives, New)
    with pytest.raises(Interrupted):
        await soon(session.wait(running.id))
    await session.answer(running.id, "abandon")
    with pytest.raises(FiberFailed, match="Abandoned"):
        await soon(session.wait(running.id))


def versions(world: World) -> tuple[type[Agent], type[Agent], type[Agent], type[Agent]]:
    """The same agent, four times: first version, second without and with an upgrade, and a bad one."""

    class First(Agent):
        @fiber
        async def work(self, f: Fiber, topic: str) -> Any:
            if f.stashed is None:
                await f.stash({"done": 1})
            await world.gate("go on").wait()

    class Second(Agent):
        @fiber(version=2)
        async def work(self, f: Fiber, topic: str, depth: int) -> Any:
            return [topic, depth, f.stashed]

    def upgrade(old: int, given: dict[str, Any]) -> dict[str, Any]:
        assert old == 1
        return {"args": [*given["args"], 9], "kwargs": {}, "stash": [given["stash"]["done"]]}

    class Upgrading(Agent):
        @fiber(version=2, upgrade=upgrade)
        async def work(self, f: Fiber, topic: str, depth: int) -> Any:
            return [topic, depth, f.stashed]

    class Bad(Agent):
        @fiber(version=2, upgrade=lambda old, given: {"no": "arguments"})
        async def work(self, f: Fiber, topic: str, depth: int) -> Any: ...

    Second.__name__ = Upgrading.__name__ = Bad.__name__ = "First"
    return First, Second, Upgrading, Bad


async def begun(lives: Lives, first: type[Agent]) -> str:
    rt = await lives.begin(first)
    running = await rt.session(first, "one").start(first.work, "snow")  # type: ignore[attr-defined]
    await until(lambda: _stashed(lives, running.id, {"done": 1}))
    return str(running.id)


async def test_another_version_parks_the_fiber(lives: Lives, world: World) -> None:
    first, second, _, _ = versions(world)
    running = await begun(lives, first)
    session = await next_life(lives, second)
    with pytest.raises(Interrupted, match="work is version 2, the fiber was started by 1"):
        await soon(session.wait(running))
    assert (await row_of(session)).attempt == 0


async def test_an_upgrade_takes_up_arguments_and_stash_of_an_older_version(
    lives: Lives, world: World
) -> None:
    first, _, upgrading, _ = versions(world)
    running = await begun(lives, first)
    session = await next_life(lives, upgrading)
    assert await soon(session.wait(running)) == ["snow", 9, [1]]


async def test_an_upgrade_that_fails_parks_the_fiber(lives: Lives, world: World) -> None:
    first, _, upgrading, bad = versions(world)
    running = await begun(lives, first)
    session = await next_life(lives, bad)
    with pytest.raises(Interrupted, match="the upgrade of work failed: KeyError"):
        await soon(session.wait(running))
    row = await row_of(session)
    assert (row.version, row.attempt, decode(row.stash)) == (1, 0, {"done": 1})
    session = await next_life(lives, upgrading)
    await session.answer(running, "retry")
    assert await soon(session.wait(running)) == ["snow", 9, [1]]


async def test_a_newer_version_than_the_code_knows_parks_the_fiber(lives: Lives, world: World) -> None:
    class Newer(Agent):
        @fiber(version=2)
        async def work(self, f: Fiber) -> None:
            await world.gate("go on").wait()

    class Older(Agent):
        @fiber
        async def work(self, f: Fiber) -> None: ...

    Older.__name__ = "Newer"
    rt = await lives.begin(Newer)
    running = await rt.session(Newer, "one").start(Newer.work)
    session = await next_life(lives, Older)
    with pytest.raises(Interrupted, match="work is version 1, the fiber was started by 2"):
        await soon(session.wait(running.id))


async def test_arguments_that_do_not_fit_any_more_park_the_fiber(lives: Lives, world: World) -> None:
    class Old(Agent):
        @fiber
        async def work(self, f: Fiber, topic: str) -> None:
            await world.gate("go on").wait()

    class New(Agent):
        @fiber
        async def work(self, f: Fiber, topic: str, depth: int) -> None: ...

    New.__name__ = "Old"
    rt = await lives.begin(Old)
    running = await rt.session(Old, "one").start(Old.work, "snow")
    session = await next_life(lives, New)
    with pytest.raises(Interrupted, match="missing a required argument: 'depth'"):
        await soon(session.wait(running.id))
    assert (await row_of(session)).attempt == 0
    session = await next_life(lives, Old)
    world.open("go on")
    await session.answer(running.id, "retry")
    assert await soon(session.wait(running.id)) is None
