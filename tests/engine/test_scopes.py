"""Places: the step counter of each scope, parallel branches, named scopes, and what is ambiguous."""

import asyncio
from typing import Any

import pytest

from perdure import Agent, AmbiguousStep, Fiber, fiber

from .lives import Lives, World, soon


async def places(lives: Lives, session: str) -> list[tuple[str, int, str]]:
    return sorted((op.scope, op.step, op.kind) for op in await lives.store.ops(session))


async def test_steps_are_counted_in_their_order(lives: Lives) -> None:
    class Counting(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            for name in ("a", "b", "c"):
                await f.op(name, lambda: None, effect="read")

    rt = await lives.begin(Counting)
    session = rt.session(Counting, "one")
    await soon(session.call(Counting.work))
    assert await places(lives, session.id) == [("", 0, "a"), ("", 1, "b"), ("", 2, "c")]


async def test_the_branches_of_a_gather_have_their_own_steps(lives: Lives, world: World) -> None:
    class Parallel(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            async def branch(name: str) -> list[str]:
                first = await f.op(f"{name}1", world.do, f"{name}1", effect="once")
                await asyncio.sleep(0)
                return [first, await f.op(f"{name}2", world.do, f"{name}2", effect="once")]

            before = await f.op("before", world.do, "before", effect="once")
            both = await f.gather(branch("a"), branch("b"))
            return [before, both, await f.op("after", world.do, "after", effect="once")]

    rt = await lives.begin(Parallel)
    session = rt.session(Parallel, "one")
    expected = ["before", [["a1", "a2"], ["b1", "b2"]], "after"]
    assert await soon(session.call(Parallel.work)) == expected
    assert await places(lives, session.id) == [
        ("", 0, "before"),
        ("", 2, "after"),
        ("/1.0", 0, "a1"),
        ("/1.0", 1, "a2"),
        ("/1.1", 0, "b1"),
        ("/1.1", 1, "b2"),
    ]
    assert all(count == 1 for count in world.did.values())


async def test_gathers_can_be_nested(lives: Lives, world: World) -> None:
    class Nested(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            async def leaf(name: str) -> str:
                return await f.op(name, world.do, name, effect="once")

            async def branch(name: str) -> list[str]:
                return await f.gather(leaf(f"{name}1"), leaf(f"{name}2"))

            return await f.gather(branch("a"), branch("b"))

    rt = await lives.begin(Nested)
    session = rt.session(Nested, "one")
    assert await soon(session.call(Nested.work)) == [["a1", "a2"], ["b1", "b2"]]
    assert [one[0] for one in await places(lives, session.id)] == [
        "/0.0/0.0",
        "/0.0/0.1",
        "/0.1/0.0",
        "/0.1/0.1",
    ]
    assert world.did == {"a1": 1, "a2": 1, "b1": 1, "b2": 1}


async def test_an_empty_gather_is_a_step_too(lives: Lives) -> None:
    class Empty(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            nothing = await f.gather()
            return [nothing, await f.op("after", lambda: 1, effect="read")]

    rt = await lives.begin(Empty)
    session = rt.session(Empty, "one")
    assert await soon(session.call(Empty.work)) == [[], 1]
    assert await places(lives, session.id) == [("", 1, "after")]


async def test_a_named_scope_counts_on_when_it_is_entered_again(lives: Lives, world: World) -> None:
    class Named(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            for round_ in ("first", "second"):
                for name in ("a/b", "c:d"):
                    async with f.scope(name):
                        await f.op(f"{round_} {name}", world.do, f"{round_} {name}", effect="once")
            await f.op("last", world.do, "last", effect="once")

    rt = await lives.begin(Named)
    session = rt.session(Named, "one")
    await soon(session.call(Named.work))
    assert await places(lives, session.id) == [
        ("", 0, "last"),
        ("/3:a/b", 0, "first a/b"),
        ("/3:a/b", 1, "second a/b"),
        ("/3:c:d", 0, "first c:d"),
        ("/3:c:d", 1, "second c:d"),
    ]
    assert all(count == 1 for count in world.did.values())


async def test_tasks_in_named_scopes_do_not_meet(lives: Lives, world: World) -> None:
    class Tasks(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[Any]:
            async def fetch(name: str) -> list[str]:
                async with f.scope(name):
                    first = await f.op("read", world.do, name, effect="once")
                    await asyncio.sleep(0)
                    return [first, await f.op("again", world.do, f"{name}!", effect="once")]

            return await asyncio.gather(fetch("a"), fetch("b"))

    rt = await lives.begin(Tasks)
    assert await soon(rt.session(Tasks, "one").call(Tasks.work)) == [["a", "a!"], ["b", "b!"]]
    assert world.did == {"a": 1, "a!": 1, "b": 1, "b!": 1}


@pytest.mark.not_evicted("two tasks are held in one scope at once")
async def test_two_tasks_in_one_scope_are_ambiguous(lives: Lives, world: World) -> None:
    class Ambiguous(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[str]:
            first = asyncio.create_task(f.op("a", world.do_and_wait, "a", effect="once"))
            await world_did("a")
            refused: list[str] = []
            for attempt in (
                lambda: f.op("b", world.do, "b", effect="once"),
                lambda: f.gather(nothing(), nothing()),
            ):
                try:
                    await attempt()
                except AmbiguousStep as ambiguous:
                    refused.append(str(ambiguous).split("(")[1])
            world.open("a")
            return [await first, *refused]

    async def nothing() -> None: ...

    async def world_did(name: str) -> None:
        while not world.did[name]:
            await asyncio.sleep(0)

    rt = await lives.begin(Ambiguous)
    said = await soon(rt.session(Ambiguous, "one").call(Ambiguous.work))
    assert said == ["a", "scope of the fiber, step 0)", "scope of the fiber, step 0)"]
    assert world.did == {"a": 1}


@pytest.mark.not_evicted("two tasks are held in one scope at once")
async def test_a_named_scope_that_is_open_can_not_be_opened_beside_itself(lives: Lives) -> None:
    class Twice(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            inside = asyncio.Event()

            async def hold() -> None:
                async with f.scope("same"):
                    inside.set()
                    await asyncio.Event().wait()

            holding = asyncio.create_task(hold())
            await inside.wait()
            try:
                async with f.scope("same"):
                    return "opened twice"
            except AmbiguousStep as ambiguous:
                return str(ambiguous)
            finally:
                holding.cancel()

    rt = await lives.begin(Twice)
    assert "scope 'same' is open already" in await rt.session(Twice, "one").call(Twice.work)


@pytest.mark.not_evicted("two tasks are held at one key at once")
async def test_two_tasks_at_one_key_are_ambiguous_and_do_it_once(lives: Lives, world: World) -> None:
    class SameKey(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[str]:
            async def pay() -> str:
                try:
                    return await f.op("pay", world.do_and_wait, "pay", effect="once", key="invoice 7")
                except AmbiguousStep as ambiguous:
                    world.open("pay")
                    return str(ambiguous)

            return await f.gather(pay(), pay())

    rt = await lives.begin(SameKey)
    paid, refused = await soon(rt.session(SameKey, "one").call(SameKey.work))
    assert paid == "pay"
    assert "invoice 7" in refused
    assert world.did == {"pay": 1}


async def test_every_branch_ends_before_the_first_error_is_raised(lives: Lives, world: World) -> None:
    class Failing(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            async def fail(why: str) -> None:
                raise ValueError(why)

            async def pay() -> None:
                await asyncio.sleep(0)
                await f.op("pay", world.do, "pay", effect="once")

            try:
                await f.gather(fail("first"), pay(), fail("second"))
            except ValueError as error:
                return str(error)
            return "no error"

    rt = await lives.begin(Failing)
    session = rt.session(Failing, "one")
    assert await soon(session.call(Failing.work)) == "first"
    assert world.did == {"pay": 1}
    assert [op.outcome for op in await session.ops()] == ["done"]


async def test_branches_are_recovered_each_at_its_own_step(lives: Lives, world: World) -> None:
    class Uneven(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[int]:
            async def branch(name: str, steps: int) -> int:
                for step in range(steps):
                    await f.op(f"{name}{step}", world.do, f"{name}{step}", effect="once")
                if name == "slow":
                    await world.gate("slow").wait()
                return steps

            return await f.gather(branch("slow", 1), branch("fast", 3))

    rt = await lives.begin(Uneven)
    session = rt.session(Uneven, "one")
    running = await session.start(Uneven.work)

    async def all_settled() -> bool:
        return sum(op.settled_at is not None for op in await session.ops()) == 4

    from .lives import until

    await until(all_settled)
    await lives.kill(rt)
    rt = await lives.begin(Uneven)
    world.open("slow")
    assert await soon(rt.session(Uneven, "one").wait(running.id)) == [1, 3]
    assert world.did == {"slow0": 1, "fast0": 1, "fast1": 1, "fast2": 1}
