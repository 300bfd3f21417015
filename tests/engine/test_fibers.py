"""Fibers: started, awaited or left, ended, listed, cancelled, and read afterwards."""

import asyncio

import pytest
from pydantic import BaseModel

from perdure import (
    Agent,
    Fiber,
    FiberCancelled,
    FiberClosed,
    FiberFailed,
    NoFiber,
    NotFound,
    Status,
    current_fiber,
    fiber,
)

from .lives import Lives, World, soon, until


class Report(BaseModel):
    title: str
    pages: int = 1


class Writer(Agent):
    world: World

    @fiber
    async def write(self, f: Fiber, title: str, *, pages: int = 1) -> Report:
        return Report(title=title, pages=pages)

    @fiber
    async def wait(self, f: Fiber) -> str:
        return await self.world.do_and_wait("wait")

    @fiber
    async def fail(self, f: Fiber) -> None:
        raise ValueError("no paper")

    @fiber
    async def nothing(self, f: Fiber) -> None:
        pass

    async def write_here(self, title: str) -> str:
        async def body(f: Fiber) -> str:
            return title.upper()

        return await self.run_fiber("write", body)

    async def write_and_go(self, title: str) -> str:
        return await self.run_fiber("write", lambda f: self.world.do_and_wait(title)).started()


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Writer.world = world


async def test_a_method_fiber_is_awaited_for_its_result(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    assert await (await session.start(Writer.write, "Snow", pages=3)) == Report(title="Snow", pages=3)
    assert await session.call(Writer.write, "Rain") == Report(title="Rain")


@pytest.mark.not_evicted("an ad-hoc function has nothing to re-enter with")
async def test_an_ad_hoc_fiber_is_awaited_in_its_method(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    assert await rt.session(Writer, "one").call(Writer.write_here, "snow") == "SNOW"


@pytest.mark.not_evicted("an ad-hoc function has nothing to re-enter with")
async def test_a_fiber_that_is_left_running_runs_on_after_its_method(lives: Lives, world: World) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    started = await session.call(Writer.write_and_go, "snow")
    assert [row.id for row in await session.fibers()] == [started]
    world.open("snow")
    assert await soon(session.wait(started)) == "snow"


async def test_a_fiber_is_on_disk_before_its_start_returns(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.wait)
    row = await lives.store.fiber(running.id)
    assert row is not None
    assert (row.name, row.kind, row.attempt, row.parked) == ("wait", "method", 0, None)
    assert await session.status() == Status.RUNNING
    assert await session.why() == "1 fiber works"


async def test_a_result_can_be_read_after_the_end_and_after_a_restart(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.write, "Snow")
    await running
    assert await session.wait(running.id) == {"title": "Snow", "pages": 1}
    assert await session.fibers() == []
    await lives.kill(rt)
    rt = await lives.begin(Writer)
    assert await rt.session(Writer, "one").wait(running.id) == {"title": "Snow", "pages": 1}


async def test_a_fiber_that_fails_says_why_live_and_later(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.fail)
    with pytest.raises((ValueError, FiberFailed), match="no paper"):
        await running
    with pytest.raises(FiberFailed, match="ValueError: no paper") as failed:
        await session.wait(running.id)
    assert failed.value.fiber_id == running.id
    ended = await session.ended()
    assert [(one.outcome, one.error) for one in ended] == [("failed", "ValueError: no paper")]


async def test_whatever_a_body_raises_ends_its_fiber(lives: Lives) -> None:
    """Also what is no `Exception`, such as a failed assertion of pytest."""

    class Odd(BaseException): ...

    class Raising(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            raise Odd("odd")

    rt = await lives.begin(Raising)
    session = rt.session(Raising, "one")
    running = await session.start(Raising.work)
    with pytest.raises((Odd, FiberFailed), match="odd"):
        await soon(running)
    with pytest.raises(FiberFailed, match="Odd: odd"):
        await soon(session.wait(running.id))


@pytest.mark.not_evicted("the waiter looks into the store again and finds only words")
async def test_whoever_awaits_a_failing_fiber_gets_its_own_exception(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    with pytest.raises(ValueError, match="no paper"):
        await rt.session(Writer, "one").call(Writer.fail)


async def test_a_fiber_is_listed_inspected_and_cancelled(lives: Lives, world: World) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.wait)
    await until(lambda: world.did["wait"])
    assert [one.name for one in await session.fibers()] == ["wait"]
    row = await session.fiber(running.id)
    assert row.name == "wait"
    assert await session.cancel(running.id) is True
    with pytest.raises(FiberCancelled):
        await soon(running)
    assert await session.fibers() == []
    ended = await session.fiber(running.id)
    assert ended.id == running.id
    assert [one.outcome for one in await session.ended()] == ["cancelled"]
    assert await session.status() == Status.IDLE


async def test_a_cancelled_fiber_can_not_be_cancelled_again(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.wait)
    assert await session.cancel(running.id) is True
    assert await session.cancel(running.id) is False


async def test_a_fiber_that_ended_can_not_be_cancelled(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.nothing)
    assert await running is None
    assert await session.cancel(running.id) is False
    assert await session.wait(running.id) is None


async def test_cancelled_stays_cancelled_after_a_restart(lives: Lives, world: World) -> None:
    rt = await lives.begin(Writer)
    running = await rt.session(Writer, "one").start(Writer.wait)
    await until(lambda: world.did["wait"])
    await rt.session(Writer, "one").cancel(running.id)
    began = world.did["wait"]
    await lives.kill(rt)
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    with pytest.raises(FiberCancelled):
        await session.wait(running.id)
    assert await session.call("write", "Snow")
    assert world.did["wait"] == began


async def test_an_agent_cancels_its_own_fiber(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    running = await session.start(Writer.wait)
    assert await session.call(Writer.cancel_fiber, running.id) is True
    assert [one.outcome for one in await session.ended()] == ["cancelled"]


async def test_what_does_not_exist_is_not_found(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    for looking in (session.wait("f0"), session.fiber("f0"), session.cancel("f0")):
        with pytest.raises(NotFound, match="f0"):
            await looking


async def test_a_session_does_not_see_the_fibers_of_another(lives: Lives) -> None:
    rt = await lives.begin(Writer)
    running = await rt.session(Writer, "one").start(Writer.wait)
    other = rt.session(Writer, "two")
    with pytest.raises(NotFound):
        await other.fiber(running.id)
    with pytest.raises(NotFound):
        await other.cancel(running.id)
    assert await other.fibers() == []
    assert [one.name for one in await rt.session(Writer, "one").fibers()] == ["wait"]


async def test_the_failure_of_one_fiber_does_not_touch_another(lives: Lives, world: World) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    waiting = await session.start(Writer.wait)
    failing = await session.start(Writer.fail)
    with pytest.raises((ValueError, FiberFailed)):
        await failing
    world.open("wait")
    assert await soon(waiting) == "wait"


async def test_a_fiber_knows_itself(lives: Lives) -> None:
    class Knowing(Agent):
        @fiber
        async def know(self, f: Fiber) -> list[object]:
            return [current_fiber() is f, f.name, f.attempt, f.stashed, f.id, self.key, self.session_id]

    rt = await lives.begin(Knowing)
    session = rt.session(Knowing, "a key")
    running = await session.start(Knowing.know)
    assert await running == [True, "know", 0, None, running.id, "a key", session.id]


@pytest.mark.not_evicted("the fiber is watched from inside this process")
async def test_a_fiber_that_has_ended_can_write_nothing_more(lives: Lives) -> None:
    kept: list[Fiber] = []

    class Leaking(Agent):
        @fiber
        async def leak(self, f: Fiber) -> None:
            kept.append(f)

    rt = await lives.begin(Leaking)
    await rt.session(Leaking, "one").call(Leaking.leak)
    with pytest.raises(FiberClosed, match="leak"):
        await kept[0].op("late", lambda: 1, effect="read")
    with pytest.raises(FiberClosed):
        kept[0].stash(1)
    with pytest.raises(FiberClosed):
        kept[0].stash_now(1)


async def test_there_is_no_fiber_outside_one(lives: Lives) -> None:
    class Outside(Agent):
        async def look(self) -> None:
            self.stash({"a": 1})

        async def look_now(self) -> None:
            self.stash_now({"a": 1})

    rt = await lives.begin(Outside)
    for method in (Outside.look, Outside.look_now):
        with pytest.raises(NoFiber):
            await rt.session(Outside, "one").call(method)
    with pytest.raises(NoFiber):
        current_fiber()


@pytest.mark.not_evicted("a method in mid-call is not evicted")
async def test_a_method_called_by_a_fiber_of_another_session_is_in_no_fiber(lives: Lives) -> None:
    class Callee(Agent):
        async def checkpoint(self) -> None:
            await self.stash("of the callee")

    class Caller(Agent):
        @fiber
        async def work(self, f: Fiber) -> object:
            await f.stash("of the caller")
            try:
                await rt.session(Callee, "one").call(Callee.checkpoint)
            except NoFiber:
                return f.stashed
            return "the callee wrote into the caller's fiber"

    rt = await lives.begin(Callee, Caller)
    assert await rt.session(Caller, "one").call(Caller.work) == "of the caller"


async def test_many_fibers_run_side_by_side(lives: Lives) -> None:
    class Many(Agent):
        @fiber
        async def count(self, f: Fiber, number: int) -> int:
            first: int = await f.op("first", lambda: number, effect="read")
            await asyncio.sleep(0)
            second: int = await f.op("second", lambda: number, effect="read")
            return first + second

    rt = await lives.begin(Many)
    session = rt.session(Many, "one")
    started = [await session.start(Many.count, number) for number in range(10)]
    assert [await soon(one) for one in started] == [2 * number for number in range(10)]


@pytest.mark.not_evicted("a method in mid-call is not evicted")
async def test_a_method_awaits_several_of_its_fibers_at_once(lives: Lives) -> None:
    class Both(Agent):
        @fiber
        async def half(self, f: Fiber, number: int) -> int:
            await asyncio.sleep(0)
            return number

        async def both(self) -> list[int]:
            return await asyncio.gather(self.half(1), self.half(2), self.half(3))

    rt = await lives.begin(Both)
    session = rt.session(Both, "one")
    assert await soon(session.call(Both.both)) == [1, 2, 3]
    assert await soon(session.call(Both.both)) == [1, 2, 3]


@pytest.mark.not_evicted("the commit that ends it is watched")
async def test_a_caller_that_goes_away_does_not_take_the_fiber_with_it(lives: Lives, world: World) -> None:
    rt = await lives.begin(Writer)
    session = rt.session(Writer, "one")
    calling = asyncio.create_task(session.call(Writer.wait))
    await until(lambda: world.did["wait"])
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    (row,) = await session.fibers()
    world.open("wait")
    assert await soon(session.wait(row.id)) == "wait"
