"""The checkpoint: replaced whole, queued at once, on disk when awaited, with the steps that belong to it."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Fiber, OpenScopes, StoreUnavailable, fiber
from perdure.engine.values import decode
from perdure.testing.faults import faulty

from .lives import Lives, World, soon, until


class Note(BaseModel):
    text: str


async def stash_of(lives: Lives, running: str) -> Any:
    row = await lives.store.fiber(running)
    assert row is not None
    return decode(row.stash)


async def test_a_fiber_goes_on_from_its_stash(lives: Lives, world: World) -> None:
    class Steps(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[str]:
            done: list[str] = f.stashed or []
            for step in ("a", "b", "c"):
                if step not in done:
                    await f.op(step, world.do, step, effect="once")
                    done.append(step)
                    await f.stash(done)
                if step == "b":
                    await world.gate("go on").wait()
            return done

    rt = await lives.begin(Steps)
    session = rt.session(Steps, "one")
    running = await session.start(Steps.work)
    await until(lambda: world.did["b"] and stash_of(lives, running.id))
    await until(lambda: _is(stash_of(lives, running.id), ["a", "b"]))
    await lives.kill(rt)
    rt = await lives.begin(Steps)
    world.open("go on")
    assert await soon(rt.session(Steps, "one").wait(running.id)) == ["a", "b", "c"]
    assert world.did == {"a": 1, "b": 1, "c": 1}


async def _is(value: Any, expected: Any) -> bool:
    return bool(await value == expected)


@pytest.mark.parametrize("key", [None, "named"])
async def test_a_life_that_skips_finished_work_finds_the_op_in_flight_at_its_place(
    lives: Lives, world: World, key: str | None
) -> None:
    """The first op is skipped thanks to the stash, so only stored counters give the second its place."""

    class Skipping(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            if f.stashed is None:
                await f.op("first", world.do, "first", effect="once")
                await f.stash("first is done")
            second = await f.op("second", world.do, "second", effect="once", key=key)
            await world.gate("go on").wait()
            return second

    rt = await lives.begin(Skipping)
    running = await rt.session(Skipping, "one").start(Skipping.work)
    await until(lambda: world.did["second"])
    await until(lambda: _settled(lives, rt.session(Skipping, "one").id, 2))
    await lives.kill(rt)
    rt = await lives.begin(Skipping)
    world.open("go on")
    assert await soon(rt.session(Skipping, "one").wait(running.id)) == "second"
    assert world.did == {"first": 1, "second": 1}


async def _settled(lives: Lives, session: str, count: int) -> bool:
    return sum(op.settled_at is not None for op in await lives.store.ops(session)) == count


async def test_each_fiber_has_its_own_stash(lives: Lives) -> None:
    class Many(Agent):
        @fiber
        async def count(self, f: Fiber, number: int) -> list[Any]:
            if f.stashed is None:
                await self.stash({"number": number})
            await asyncio.sleep(0)
            return [number, f.stashed]

    rt = await lives.begin(Many)
    session = rt.session(Many, "one")
    started = [await session.start(Many.count, number) for number in range(8)]
    assert [await soon(one) for one in started] == [[n, {"number": n}] for n in range(8)]


@pytest.mark.not_evicted("a method in mid-call is not evicted")
async def test_the_stash_of_the_agent_is_that_of_the_fiber_around_it(lives: Lives) -> None:
    class Deep(Agent):
        async def begin(self) -> list[Any]:
            async def body(f: Fiber) -> Any:
                await asyncio.create_task(self.deep())
                return f.stashed

            return await asyncio.gather(self.run_fiber("a", body), self.run_fiber("b", body))

        async def deep(self) -> None:
            from perdure import current_fiber

            await self.stash(current_fiber().name)

    rt = await lives.begin(Deep)
    assert await rt.session(Deep, "one").call(Deep.begin) == ["a", "b"]


@pytest.mark.not_evicted("the fiber is watched between two of its steps")
async def test_a_stash_that_is_not_awaited_is_queued_at_once_and_in_order(lives: Lives) -> None:
    class Hasty(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            f.stash(1)
            f.stash(2)
            value = {"n": 3}
            queued = f.stash(value)
            value["n"] = 4
            assert f.stashed == {"n": 3}
            await queued
            return await stash_of(lives, f.id)

    rt = await lives.begin(Hasty)
    assert await rt.session(Hasty, "one").call(Hasty.work) == {"n": 3}


async def test_a_stash_that_nobody_awaited_is_written_before_what_comes_after_it(lives: Lives) -> None:
    class Hasty(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            if f.stashed is None:
                f.stash("queued")
            await f.op("read", lambda: 1, effect="read")
            return await stash_of(lives, f.id)

    rt = await lives.begin(Hasty)
    assert await soon(rt.session(Hasty, "one").call(Hasty.work)) == "queued"


@pytest.mark.not_evicted("it blocks the loop, so nothing can be evicted in it")
async def test_stash_now_is_on_disk_when_it_returns(lives: Lives) -> None:
    seen: list[Any] = []

    class Blocking(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            f.stash("queued before")
            self.stash_now("now")
            seen.append(lives.store.group.run_now(Looking(f.id)))

    class Looking:
        def __init__(self, fiber: str) -> None:
            self.fiber = fiber

        def apply(self, connection: Any) -> Any:
            return decode(connection.run("fiber", {"fiber": self.fiber})[0][10])

        def undo(self) -> None: ...

        def unsure(self) -> None: ...

    rt = await lives.begin(Blocking)
    await rt.session(Blocking, "one").call(Blocking.work)
    assert seen == ["now"]


async def test_a_stash_holds_json_and_models(lives: Lives) -> None:
    class Values(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            if f.stashed is None:
                await f.stash(
                    [None, True, 1, 1.5, "text", [], {}, {"a": {"b": None}}, Note(text="x"), (1, 2)]
                )
            return f.stashed

    rt = await lives.begin(Values)
    expected = [None, True, 1, 1.5, "text", [], {}, {"a": {"b": None}}, {"text": "x"}, [1, 2]]
    assert await soon(rt.session(Values, "one").call(Values.work)) == expected


@pytest.mark.not_evicted("two branches are held open at once")
async def test_a_stash_beside_open_branches_is_refused_and_changes_nothing(lives: Lives) -> None:
    class Beside(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[Any]:
            await f.stash("before")
            both = asyncio.Barrier(2)

            async def branch(name: str) -> str:
                await both.wait()
                try:
                    await f.stash(name)
                except OpenScopes as refused:
                    return "refused" if "open:" in str(refused) else str(refused)
                finally:
                    await both.wait()
                return "accepted"

            answers = await f.gather(branch("a"), branch("b"))
            return [*answers, f.stashed, await stash_of(lives, f.id)]

    rt = await lives.begin(Beside)
    assert await rt.session(Beside, "one").call(Beside.work) == ["refused", "refused", "before", "before"]


async def test_a_stash_in_a_nested_scope_without_siblings_is_fine(lives: Lives, world: World) -> None:
    class Nested(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            async with f.scope("outer"):
                async with f.scope("inner"):
                    if f.stashed is None:
                        await f.op("a", world.do, "a", effect="once")
                        await f.stash(["a"])
                    if f.stashed == ["a"]:
                        await f.op("b", world.do, "b", effect="once")
                if f.stashed == ["a"]:
                    await f.op("c", world.do, "c", effect="once")
                    await f.stash(["a", "b", "c"])
                await f.op("d", world.do, "d", effect="once")
            return f.stashed

    rt = await lives.begin(Nested)
    assert await soon(rt.session(Nested, "one").call(Nested.work)) == ["a", "b", "c"]
    assert world.did == {"a": 1, "b": 1, "c": 1, "d": 1}


@pytest.mark.not_evicted("the store is made to fail at a chosen commit")
async def test_a_stash_waits_for_a_store_that_is_away(lives: Lives) -> None:
    class Patient(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            faulty(lives.store).lose_commits = 2
            await f.stash("kept")
            return await stash_of(lives, f.id)

    rt = await lives.begin(Patient)
    assert await soon(rt.session(Patient, "one").call(Patient.work)) == "kept"


@pytest.mark.not_evicted("the store is made to fail at a chosen commit")
async def test_a_stash_that_is_written_late_keeps_the_steps_of_its_own_time(
    lives: Lives, world: World
) -> None:
    """Else the op after it would get another place in the next life, and be done twice."""

    class Late(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            if f.stashed is None:
                faulty(lives.store).lose_commits = 2
                queued = f.stash("pay next")
                await asyncio.sleep(0)
                await f.op("pay", world.do, "pay", effect="once")
                await queued
                await world.gate("never").wait()
            return await f.op("pay", world.do, "pay", effect="once")

    rt = await lives.begin(Late)
    running = await rt.session(Late, "one").start(Late.work)
    await until(lambda: _is(stash_of(lives, running.id), "pay next"))
    await lives.kill(rt)
    rt = await lives.begin(Late)
    assert await soon(rt.session(Late, "one").wait(running.id)) == "pay"
    assert world.did == {"pay": 1}


@pytest.mark.not_evicted("the store is made to fail at a chosen commit")
async def test_a_start_that_fails_for_want_of_a_store_never_happened(lives: Lives, world: World) -> None:
    class Failing(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            world.do("work")

    rt = await lives.begin(Failing)
    session = rt.session(Failing, "one")
    await rt.host.wake(Failing, "one")
    faulty(lives.store).lose_commits = 2
    with pytest.raises(StoreUnavailable):
        await session.start_once("once", Failing.work)
    assert await session.fibers() == []
    again = await session.start_once("once", Failing.work)
    await soon(again)
    assert world.did == {"work": 1}
