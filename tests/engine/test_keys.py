"""Idempotent start: the same key joins, also at the same time, after the end and after a restart."""

import asyncio

import pytest

from perdure import Agent, Fiber, FiberCancelled, FiberFailed, fiber
from perdure.core.identity import session_id

from .lives import Lives, World, soon, until


class Shop(Agent):
    world: World

    @fiber
    async def order(self, f: Fiber, what: str) -> str:
        await f.op("order", self.world.do, what, effect="once")
        await self.world.gate("deliver").wait()
        return what

    @fiber
    async def fail(self, f: Fiber) -> None:
        raise ValueError("sold out")

    async def order_here(self, what: str) -> list[object]:
        async def body(f: Fiber) -> str:
            return self.world.do(what)

        running = self.run_fiber("order", body, key="order 7")
        return [await running.accepted(), await running.started(), await running]

    async def order_by_method(self, what: str) -> bool:
        return await self.order.with_key("order 7", what).accepted()


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Shop.world = world


async def test_the_same_key_joins_the_fiber_that_runs(lives: Lives, world: World) -> None:
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    first = await session.start_once("order 7", Shop.order, "book")
    again = await session.start_once("order 7", Shop.order, "book")
    assert (await first.accepted(), await again.accepted()) == (True, False)
    assert first.id == again.id
    world.open("deliver")
    assert [await soon(first), await soon(again)] == ["book", "book"]
    assert world.did == {"book": 1}


async def test_starts_at_the_same_time_are_one_fiber(lives: Lives, world: World) -> None:
    world.open("deliver")
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    started = await asyncio.gather(*(session.start_once("order 7", Shop.order, "book") for _ in range(10)))
    assert len({one.id for one in started}) == 1
    assert sorted([await one.accepted() for one in started]) == [False] * 9 + [True]
    assert [await soon(one) for one in started] == ["book"] * 10
    assert world.did == {"book": 1}


async def test_the_same_key_joins_a_fiber_that_has_ended(lives: Lives, world: World) -> None:
    world.open("deliver")
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    first = await session.start_once("order 7", Shop.order, "book")
    assert await soon(first) == "book"
    again = await session.start_once("order 7", Shop.order, "book")
    assert await again.accepted() is False
    assert await again == "book"
    assert world.did == {"book": 1}


async def test_the_same_key_joins_after_a_restart_and_gets_the_result(lives: Lives, world: World) -> None:
    rt = await lives.begin(Shop)
    first = await rt.session(Shop, "one").start_once("order 7", Shop.order, "book")
    await until(lambda: _ordered(lives), "the order is recorded")
    await lives.kill(rt)
    rt = await lives.begin(Shop)
    again = await rt.session(Shop, "one").start_once("order 7", Shop.order, "book")
    assert await again.accepted() is False
    assert again.id == first.id
    world.open("deliver")
    assert await soon(again) == "book"
    await lives.kill(rt)
    rt = await lives.begin(Shop)
    later = await rt.session(Shop, "one").start_once("order 7", Shop.order, "book")
    assert (await later.accepted(), await later) == (False, "book")
    assert world.did == {"book": 1}


async def _ordered(lives: Lives) -> bool:
    ops = await lives.store.ops(session_id("Shop", "one"))
    return bool(ops) and ops[0].settled_at is not None


async def test_a_failure_is_joined_as_well(lives: Lives) -> None:
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    with pytest.raises((ValueError, FiberFailed), match="sold out"):
        await (await session.start_once("order 7", Shop.fail))
    again = await session.start_once("order 7", Shop.fail)
    assert await again.accepted() is False
    with pytest.raises(FiberFailed, match="sold out"):
        await again


async def test_a_cancelled_fiber_is_not_started_again_by_its_key(lives: Lives, world: World) -> None:
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    first = await session.start_once("order 7", Shop.order, "book")
    await session.cancel(first.id)
    again = await session.start_once("order 7", Shop.order, "book")
    assert await again.accepted() is False
    with pytest.raises(FiberCancelled):
        await again


async def test_another_key_and_another_session_are_another_fiber(lives: Lives, world: World) -> None:
    rt = await lives.begin(Shop)
    one, two = rt.session(Shop, "one"), rt.session(Shop, "two")
    started = [
        await one.start_once("order 7", Shop.order, "book"),
        await one.start_once("order 8", Shop.order, "book"),
        await two.start_once("order 7", Shop.order, "book"),
        await one.start(Shop.order, "book"),
        await one.start(Shop.order, "book"),
    ]
    assert [await each.accepted() for each in started] == [True] * 5
    assert len({each.id for each in started}) == 5


@pytest.mark.not_evicted("an ad-hoc function has nothing to re-enter with")
async def test_run_fiber_takes_a_key_too(lives: Lives, world: World) -> None:
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    accepted, started, result = await session.call(Shop.order_here, "book")
    assert (accepted, result) == (True, "book")
    assert await session.call(Shop.order_here, "book") == [False, started, "book"]
    assert world.did == {"book": 1}


async def test_a_method_starts_its_fiber_by_key(lives: Lives) -> None:
    rt = await lives.begin(Shop)
    session = rt.session(Shop, "one")
    assert await session.call(Shop.order_by_method, "book") is True
    assert await session.call(Shop.order_by_method, "book") is False


async def test_starts_at_two_hosts_in_turn_are_one_fiber(lives: Lives, world: World) -> None:
    one = await lives.begin(Shop)
    first = await one.session(Shop, "one").start_once("order 7", Shop.order, "book")
    await lives.leave(one)
    other = await lives.begin(Shop)
    again = await other.session(Shop, "one").start_once("order 7", Shop.order, "book")
    assert (first.id, await again.accepted()) == (again.id, False)
    world.open("deliver")
    assert await soon(again) == "book"
    assert len(await other.session(Shop, "one").ended()) == 1
