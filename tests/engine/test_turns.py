"""Single-threaded per session: methods, hooks and alarm callbacks pass one at a time, in order."""

import asyncio
from typing import Any

import pytest

from perdure import Agent, Draining, Fiber, NotFound, OwnedElsewhere, Reentrant, Status, fiber
from perdure.engine.turnstile import Turnstile
from perdure.testing.clock import ManualClock

from .lives import Lives, World, settle, soon, until

pytestmark = pytest.mark.not_evicted("a method in mid-call is not evicted")


class Clerk(Agent):
    world: World

    async def serve(self, who: str) -> str:
        self.world.do(f"{who} in")
        await self.world.gate(who).wait()
        self.world.do(f"{who} out")
        return who

    async def serve_by_fiber(self, who: str) -> str:
        self.world.do(f"{who} in")
        served = await self.work(who)
        self.world.do(f"{who} out")
        return served

    @fiber
    async def work(self, f: Fiber, who: str) -> str:
        await self.world.gate(who).wait()
        return who

    def plain(self) -> str:
        return "plain"

    async def call_self(self) -> None:
        await self.session.call(Clerk.plain)

    async def call(self, *keys: str) -> Any:
        """Calls the next session, which calls the next one."""
        if not keys:
            return "reached"
        return await self.rt.session(Clerk, keys[0]).call(Clerk.call, *keys[1:])

    async def call_when(self, gate: str, other: str) -> Any:
        await self.world.do_and_wait(gate)
        return await self.rt.session(Clerk, other).call(Clerk.plain)

    @property
    def session(self) -> Any:
        return self.rt.session(Clerk, self.key)


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Clerk.world = world


@pytest.fixture
async def rt(lives: Lives) -> Any:
    Clerk.rt = await lives.begin(Clerk)  # type: ignore[attr-defined]
    return Clerk.rt  # type: ignore[attr-defined]


async def test_methods_run_one_at_a_time_in_arrival_order(rt: Any, world: World) -> None:
    session = rt.session(Clerk, "one")
    callers = "abcde"
    calls = [asyncio.create_task(session.call(Clerk.serve, who)) for who in callers]
    world.open(*reversed(callers))
    assert await soon(asyncio.gather(*calls)) == list(callers)
    assert world.order == [f"{who} {way}" for who in callers for way in ("in", "out")]


async def test_sessions_do_not_wait_for_each_other(rt: Any, world: World) -> None:
    one = asyncio.create_task(rt.session(Clerk, "one").call(Clerk.serve, "a"))
    await until(lambda: world.did["a in"])
    world.open("b")
    assert await soon(rt.session(Clerk, "two").call(Clerk.serve, "b")) == "b"
    world.open("a")
    assert await soon(one) == "a"


async def test_the_turn_is_released_while_a_method_awaits_a_fiber_of_its_session(
    rt: Any, world: World
) -> None:
    session = rt.session(Clerk, "one")
    slow = asyncio.create_task(session.call(Clerk.serve_by_fiber, "slow"))
    await until(lambda: world.did["slow in"])
    world.open("quick")
    assert await soon(session.call(Clerk.serve, "quick")) == "quick"
    world.open("slow")
    assert await soon(slow) == "slow"
    assert world.order == ["slow in", "quick in", "quick out", "slow out"]


async def test_a_method_has_its_turn_again_before_it_goes_on(rt: Any, world: World) -> None:
    session = rt.session(Clerk, "one")
    slow = asyncio.create_task(session.call(Clerk.serve_by_fiber, "slow"))
    await until(lambda: world.did["slow in"])
    other = asyncio.create_task(session.call(Clerk.serve, "other"))
    await until(lambda: world.did["other in"])
    world.open("slow")
    await settle()
    assert "slow out" not in world.did, "the other method has the turn"
    world.open("other")
    assert await soon(asyncio.gather(slow, other)) == ["slow", "other"]
    assert world.order == ["slow in", "other in", "other out", "slow out"]


async def test_a_method_of_a_fiber_started_by_a_method_does_not_wait_for_it(rt: Any, world: World) -> None:
    class Ordering(Agent):
        async def begin(self) -> Any:
            return await self.work()

        @fiber
        async def work(self, f: Fiber) -> Any:
            return await rt.session(Ordering, "one").call(Ordering.told)

        async def told(self) -> str:
            return "told"

    assert await soon(rt.session(Ordering, "one").call(Ordering.begin)) == "told"


async def test_a_session_that_calls_itself_is_told_so(rt: Any) -> None:
    with pytest.raises(Reentrant, match="would wait for itself for ever"):
        await soon(rt.session(Clerk, "one").call(Clerk.call_self))
    assert await soon(rt.session(Clerk, "one").call(Clerk.plain)) == "plain"


@pytest.mark.parametrize("way", [("one",), ("two", "one"), ("two", "three", "one"), ("two", "three", "two")])
async def test_a_call_that_comes_back_is_told_so(rt: Any, way: tuple[str, ...]) -> None:
    with pytest.raises(Reentrant):
        await soon(rt.session(Clerk, "one").call(Clerk.call, *way))
    for key in ("one", "two", "three"):
        assert await soon(rt.session(Clerk, key).call(Clerk.plain)) == "plain"


async def test_calls_in_a_row_are_fine(rt: Any) -> None:
    assert await soon(rt.session(Clerk, "one").call(Clerk.call, "two", "three", "four")) == "reached"


async def test_two_sessions_that_call_each_other_at_once_do_not_wait_for_ever(rt: Any, world: World) -> None:
    calls = [
        asyncio.create_task(rt.session(Clerk, key).call(Clerk.call_when, key, other))
        for key, other in (("one", "two"), ("two", "three"), ("three", "one"))
    ]
    await until(lambda: len(world.did) == 3)
    world.open("one", "two", "three")
    answers = await soon(asyncio.gather(*calls, return_exceptions=True))
    assert sum(isinstance(one, Reentrant) for one in answers) == 1
    assert sum(one == "plain" for one in answers) == 2


async def test_reads_and_cancel_never_wait_for_a_turn(rt: Any, world: World) -> None:
    session = rt.session(Clerk, "one")
    running = await session.start(Clerk.work, "never")
    busy = asyncio.create_task(session.call(Clerk.serve, "busy"))
    await until(lambda: world.did["busy in"])
    assert await soon(session.status()) == Status.RUNNING
    assert await soon(session.state()) is None
    assert len(await soon(session.fibers())) == 1
    assert await soon(session.ops()) == []
    assert await soon(session.events()) == []
    assert await soon(session.alarms()) == []
    assert await soon(session.cancel(running.id)) is True
    assert not busy.done()
    world.open("busy")
    assert await soon(busy) == "busy"


async def test_starting_a_fiber_does_not_wait_for_a_turn(rt: Any, world: World) -> None:
    session = rt.session(Clerk, "one")
    busy = asyncio.create_task(session.call(Clerk.serve, "busy"))
    await until(lambda: world.did["busy in"])
    world.open("work")
    assert await soon(session.call(Clerk.work, "work")) == "work"
    world.open("busy")
    await soon(busy)


async def test_alarm_callbacks_pass_in_their_turn_too(timed: Lives, clock: ManualClock, world: World) -> None:
    rt = await timed.begin(Clerk)
    session = rt.session(Clerk, "one")
    await session.call(Clerk.schedule, 1, "serve", "alarm")
    busy = asyncio.create_task(session.call(Clerk.serve, "busy"))
    await until(lambda: world.did["busy in"])
    await clock.advance(1)
    await settle()
    assert "alarm in" not in world.did
    world.open("busy", "alarm")
    await soon(busy)
    await until(lambda: world.did["alarm out"])
    assert world.order == ["busy in", "busy out", "alarm in", "alarm out"]


async def test_a_method_that_fails_gives_its_turn_back(rt: Any) -> None:
    class Failing(Agent):
        async def fail(self) -> None:
            raise ValueError("no")

        async def work(self) -> str:
            return "works"

    session = rt.session(Failing, "one")
    with pytest.raises(ValueError, match="no"):
        await session.call(Failing.fail)
    assert await soon(session.call(Failing.work)) == "works"


async def test_a_caller_that_goes_away_does_not_stop_the_method(rt: Any, world: World) -> None:
    session = rt.session(Clerk, "one")
    calling = asyncio.create_task(session.call(Clerk.serve, "a"))
    await until(lambda: world.did["a in"])
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    world.open("a")
    await until(lambda: world.did["a out"])


async def test_a_method_whose_wait_is_cancelled_takes_its_turn_back_first(rt: Any, world: World) -> None:
    class Hasty(Agent):
        async def give_up(self) -> str:
            waiting = asyncio.ensure_future(self.work())
            await asyncio.sleep(0)
            await asyncio.wait([waiting], timeout=0)
            await world.do_and_wait("waiting")
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            world.do("gave up")
            return "gave up"

        @fiber
        async def work(self, f: Fiber) -> None:
            await world.gate("work").wait()

        async def other(self) -> None:
            world.do("other in")
            await world.gate("other").wait()
            world.do("other out")

    session = rt.session(Hasty, "one")
    hasty = asyncio.create_task(session.call(Hasty.give_up))
    await until(lambda: world.did["waiting"])
    other = asyncio.create_task(session.call(Hasty.other))
    await until(lambda: world.did["other in"])
    world.open("waiting")
    await settle()
    world.open("other")
    assert await soon(asyncio.gather(hasty, other)) == ["gave up", None]
    assert world.order[-2:] == ["other out", "gave up"]
    world.open("other")
    await soon(session.call(Hasty.other))


async def test_a_task_that_outlives_its_method_does_not_give_back_anothers_turn(
    rt: Any, world: World
) -> None:
    class Leaving(Agent):
        async def leave(self) -> None:
            self.left = asyncio.create_task(self.later())

        async def later(self) -> None:
            await world.gate("later").wait()
            await self.nothing()
            world.do("later")

        @fiber
        async def nothing(self, f: Fiber) -> None: ...

        async def busy(self, who: str) -> None:
            world.do(f"{who} in")
            await world.gate(who).wait()
            world.do(f"{who} out")

    session = rt.session(Leaving, "one")
    await session.call(Leaving.leave)
    busy = asyncio.create_task(session.call(Leaving.busy, "a"))
    await until(lambda: world.did["a in"])
    world.open("later")
    await until(lambda: world.did["later"])
    next_one = asyncio.create_task(session.call(Leaving.busy, "b"))
    await settle()
    assert "b in" not in world.did
    world.open("a", "b")
    await soon(asyncio.gather(busy, next_one))


async def test_unknown_methods_are_not_found(rt: Any) -> None:
    session = rt.session(Clerk, "one")
    for name in ("nothing", "_private", "__init__", "key", "world", "live"):
        with pytest.raises(NotFound, match=name):
            await session.call(name)


async def test_a_plain_method_is_called_like_any_other(rt: Any) -> None:
    assert await rt.session(Clerk, "one").call("plain") == "plain"


async def test_a_caller_whose_session_ends_here_is_told_so_and_not_cancelled(
    lives: Lives, rt: Any, world: World
) -> None:
    calling = asyncio.create_task(rt.session(Clerk, "one").call(Clerk.serve, "a"))
    await until(lambda: world.did["a in"])
    await lives.leave(rt)
    with pytest.raises(Draining, match="goes on at the next host"):
        await soon(calling)


async def test_a_caller_whose_session_is_taken_over_is_told_so_and_not_cancelled(
    rt: Any, world: World
) -> None:
    calling = asyncio.create_task(rt.session(Clerk, "one").call(Clerk.serve, "a"))
    await until(lambda: world.did["a in"])
    rt.host.replaced(await rt.host.wake(Clerk, "one"))
    with pytest.raises(OwnedElsewhere, match="taken over"):
        await soon(calling)


async def test_the_first_in_the_queue_is_the_next_to_pass() -> None:
    turnstile = Turnstile("s")
    order: list[int] = []

    async def pass_through(number: int) -> None:
        async with turnstile.turn():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(pass_through(number) for number in range(20)))
    assert order == list(range(20))
    assert not turnstile.taken
