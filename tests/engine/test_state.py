"""State, broadcasts, subscribers; waking, idling, eviction and what keeps a session from it."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Fiber, Message, Settings, Unserialisable, fiber
from perdure.core.facts import AlarmRow
from perdure.engine.topics import MOST_WAITING
from perdure.testing.clock import ManualClock

from .lives import Lives, World, settle, soon, until


class Point(BaseModel):
    x: int


class Counter(Agent):
    initial_state = {"n": 0}  # noqa: RUF012
    world: World

    async def on_start(self) -> None:
        self.world.do("start")

    async def add(self, by: int = 1) -> int:
        return await self.set_state({"n": self.state["n"] + by})

    async def put(self, value: Any) -> int:
        return await self.set_state(value)

    async def look(self) -> Any:
        return self.state

    async def say(self, what: Any) -> None:
        self.broadcast(what)

    async def say_after(self, what: Any) -> None:
        changing = asyncio.create_task(self.set_state({"n": 99}))
        await asyncio.sleep(0)
        self.broadcast(what)
        await changing

    async def on_state_changed(self, state: Any, version: int) -> None:
        self.world.do(f"changed to {state} at {version}")

    @fiber
    async def work(self, f: Fiber) -> str:
        return await self.world.do_and_wait("work")

    async def hold(self, name: str) -> str:
        async with self.keep_alive():
            return await self.world.do_and_wait(name)

    async def hold_and_fail(self) -> None:
        async with self.keep_alive():
            raise ValueError("no")

    async def hold_while(self) -> str:
        return await self.keep_alive_while(self.world.do_and_wait("while"))

    async def hold_twice(self) -> None:
        async with self.keep_alive():
            async with self.keep_alive():
                await self.world.do_and_wait("twice")
            await self.world.do_and_wait("once")


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Counter.world = world


# --- state


async def test_a_session_begins_with_the_initial_state(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    assert await session.state() == {"n": 0}
    assert await session.call(Counter.look) == {"n": 0}


async def test_the_initial_state_is_not_shared(lives: Lives) -> None:
    class Changing(Agent):
        initial_state = {"seen": []}  # noqa: RUF012

        async def change(self) -> Any:
            self.state["seen"].append(1)
            return self.state

    rt = await lives.begin(Changing)
    assert await rt.session(Changing, "one").call(Changing.change) == {"seen": []}
    (await rt.session(Changing, "one").state())["seen"].append(1)
    assert await rt.session(Changing, "two").state() == {"seen": []}


async def test_state_survives_and_its_version_counts_on(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    assert [await session.call(Counter.add) for _ in range(3)] == [1, 2, 3]
    await lives.kill(rt)
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    assert await session.state() == {"n": 3}
    assert await session.call(Counter.add, 10) == 4
    assert await session.call(Counter.look) == {"n": 13}


async def test_a_change_is_told_to_the_agent_when_it_is_on_disk(lives: Lives, world: World) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    await session.call(Counter.add)
    await session.call(Counter.put, {"n": 7})
    changes = [one for one in world.order if one.startswith("changed")]
    assert changes == ["changed to {'n': 1} at 1", "changed to {'n': 7} at 2"]


async def test_state_is_what_a_new_life_would_see(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    await session.call(Counter.put, Point(x=1))
    assert await session.call(Counter.look) == {"x": 1}
    await session.call(Counter.put, (1, 2))
    assert await session.call(Counter.look) == [1, 2]


async def test_a_state_that_cannot_be_stored_changes_nothing(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    await session.call(Counter.add)
    with pytest.raises(Unserialisable, match="the state"):
        await session.call(Counter.put, {1, 2})
    assert await session.call(Counter.look) == await session.state() == {"n": 1}
    assert await session.call(Counter.add) == 2


async def test_a_copy_of_the_state_can_be_changed_freely(lives: Lives) -> None:
    class Copying(Agent):
        async def change(self) -> Any:
            await self.set_state({"list": []})
            self.state["list"].append(1)
            return self.state

    rt = await lives.begin(Copying)
    assert await rt.session(Copying, "one").call(Copying.change) == {"list": []}


# --- subscribers


async def test_subscribers_hear_states_and_broadcasts(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    with session.subscribe() as one, session.subscribe() as other:
        await session.call(Counter.add)
        await session.call(Counter.say, {"hello": (1, 2)})
        for hearing in (one, other):
            assert await soon(hearing.next()) == Message("state", {"n": 1}, 1)
            assert await soon(hearing.next()) == Message("broadcast", {"hello": [1, 2]})


async def test_a_subscription_is_an_iterator(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    with session.subscribe() as hearing:
        for word in ("a", "b"):
            await session.call(Counter.say, word)
        heard = []
        async for message in hearing:
            heard.append(message.body)
            if len(heard) == 2:
                break
    assert heard == ["a", "b"]


async def test_a_broadcast_is_sent_after_the_commits_before_it(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    with session.subscribe() as hearing:
        await session.call(Counter.say_after, "after")
        heard = [await soon(hearing.next()) for _ in range(2)]
    assert {one.kind for one in heard} == {"state", "broadcast"}
    assert await session.state() == {"n": 99}


async def test_subscribers_of_another_session_hear_nothing(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    with rt.session(Counter, "two").subscribe() as hearing:
        await rt.session(Counter, "one").call(Counter.say, "hello")
        await rt.session(Counter, "two").call(Counter.say, "to two")
        assert (await soon(hearing.next())).body == "to two"


async def test_whoever_unsubscribed_hears_nothing_more(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    with session.subscribe() as hearing:
        pass
    await session.call(Counter.say, "hello")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await hearing.next()


async def test_a_slow_subscriber_is_told_how_much_it_missed(lives: Lives) -> None:
    class Loud(Agent):
        async def shout(self, first: int, last: int) -> None:
            for number in range(first, last):
                self.broadcast(number)

    rt = await lives.begin(Loud)
    session = rt.session(Loud, "one")
    with session.subscribe() as hearing:
        await session.call(Loud.shout, 0, MOST_WAITING + 7)
        heard = [await soon(hearing.next()) for _ in range(MOST_WAITING + 1)]
        assert [one.body for one in heard[:-1]] == list(range(MOST_WAITING))
        assert heard[-1] == Message("missed", 7)
        await session.call(Loud.shout, 0, 1)
        assert await soon(hearing.next()) == Message("broadcast", 0)


async def test_a_broadcast_that_is_not_json_is_refused(lives: Lives) -> None:
    rt = await lives.begin(Counter)
    with pytest.raises(Unserialisable, match="a broadcast"):
        await rt.session(Counter, "one").call(Counter.say, object())


# --- waking


async def test_on_start_runs_once_per_waking(lives: Lives, world: World) -> None:
    rt = await lives.begin(Counter)
    session = rt.session(Counter, "one")
    await asyncio.gather(*(session.call(Counter.look) for _ in range(5)))
    assert world.did["start"] == 1
    await lives.kill(rt)
    rt = await lives.begin(Counter)
    assert world.did["start"] == 1
    await rt.session(Counter, "one").call(Counter.look)
    assert world.did["start"] == 2


async def test_an_on_start_that_fails_is_tried_again_by_the_next_request(lives: Lives, world: World) -> None:
    class Shaky(Agent):
        async def on_start(self) -> None:
            world.do("start")
            if world.did["start"] < 3:
                raise ConnectionError("not yet")

        async def work(self) -> str:
            return "works"

    rt = await lives.begin(Shaky)
    session = rt.session(Shaky, "one")
    for _ in range(2):
        with pytest.raises(ConnectionError, match="not yet"):
            await session.call(Shaky.work)
    assert await session.call(Shaky.work) == "works"
    assert await session.call(Shaky.work) == "works"
    assert world.did["start"] == 3


async def test_what_on_start_does_is_done_before_the_first_request(lives: Lives) -> None:
    class Preparing(Agent):
        async def on_start(self) -> None:
            await asyncio.sleep(0)
            self.prepared = True

        async def look(self) -> bool:
            return self.prepared

    rt = await lives.begin(Preparing)
    session = rt.session(Preparing, "one")
    assert await asyncio.gather(*(session.call(Preparing.look) for _ in range(3))) == [True] * 3


# --- idling


async def idle(timed: Lives, clock: ManualClock, seconds: float) -> None:
    timed.store.poll_every = 1.0
    await clock.advance(seconds)


@pytest.fixture
async def awake(timed: Lives) -> Any:
    timed.settings = Settings(lease_lives=1e9, idle_after=100, tryout=0.0)
    rt = await timed.begin(Counter)
    session = rt.session(Counter, "one")
    await session.call(Counter.add)
    return session


def in_memory(timed: Lives) -> int:
    return len(timed.here.host._live)


async def test_an_idle_session_is_evicted_and_its_state_survives(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    await idle(timed, clock, 99)
    assert in_memory(timed) == 1
    await idle(timed, clock, 2)
    assert in_memory(timed) == 0
    assert await awake.call(Counter.look) == {"n": 1}
    assert world.did["start"] == 2
    assert in_memory(timed) == 1


async def test_a_session_in_use_is_not_evicted(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    for _ in range(4):
        await idle(timed, clock, 60)
        await awake.call(Counter.look)
    assert world.did["start"] == 1


async def test_an_evicted_session_has_written_nothing(timed: Lives, clock: ManualClock, awake: Any) -> None:
    before = await timed.store.session(awake.id)
    await idle(timed, clock, 101)
    assert in_memory(timed) == 0
    assert await timed.store.session(awake.id) == before


async def test_a_session_with_a_fiber_is_not_evicted(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    running = await awake.start(Counter.work)
    await idle(timed, clock, 500)
    assert in_memory(timed) == 1
    world.open("work")
    assert await soon(running) == "work"
    await idle(timed, clock, 101)
    assert in_memory(timed) == 0


async def test_a_session_in_a_method_is_not_evicted(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    class Slow(Agent):
        async def work(self) -> str:
            return await world.do_and_wait("slow")

    session = timed.here.session(Slow, "one")
    calling = asyncio.create_task(session.call(Slow.work))
    await until(lambda: world.did["slow"])
    await idle(timed, clock, 500)
    assert in_memory(timed) == 1
    world.open("slow")
    assert await soon(calling) == "slow"


async def test_subscribers_hear_on_across_an_eviction(timed: Lives, clock: ManualClock, awake: Any) -> None:
    with awake.subscribe() as hearing:
        await awake.call(Counter.say, "before")
        await idle(timed, clock, 101)
        assert in_memory(timed) == 0
        await awake.call(Counter.say, "after")
        assert [(await soon(hearing.next())).body for _ in range(2)] == ["before", "after"]


async def test_a_session_that_waits_for_an_answer_is_evicted(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    """Waiting is free (P12)."""

    class Doubting(Agent):
        @fiber
        async def pay(self, f: Fiber) -> str:
            return await f.op("pay", self.lose, effect="once")

        def lose(self) -> str:
            raise ConnectionError

    session = timed.here.session(Doubting, "one")
    running = await session.start(Doubting.pay)

    async def parked() -> bool:
        return bool(await session.doubts())

    await until(parked)
    await settle()
    await idle(timed, clock, 201)
    assert in_memory(timed) == 0
    (doubt,) = await session.doubts()
    await session.resolve(doubt.id, happened=True, result="paid")
    assert await soon(session.wait(running.id)) == "paid"


# --- keepalive


async def heartbeats(timed: Lives, session: Any) -> list[AlarmRow]:
    """The alarms of the session that are in no list."""
    columns = ", ".join(AlarmRow._fields)
    query = f"SELECT {columns} FROM alarms WHERE kind = 'keepalive' AND session = ?"
    return [AlarmRow(*one) for one in timed.store.group.connection.raw.execute(query, (session.id,))]


async def test_a_session_that_is_kept_alive_is_not_evicted_and_has_a_heartbeat(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    holding = asyncio.create_task(awake.call(Counter.hold, "held"))
    await until(lambda: world.did["held"])
    (first,) = await heartbeats(timed, awake)
    assert first.due_at == clock.now() + 30_000
    assert await awake.alarms() == []
    await idle(timed, clock, 31)
    (second,) = await heartbeats(timed, awake)
    assert second.due_at > first.due_at
    await idle(timed, clock, 500)
    assert in_memory(timed) == 1
    world.open("held")
    assert await soon(holding) == "held"
    assert await heartbeats(timed, awake) == []
    assert await awake.ended() == [], "a heartbeat is no fiber"


async def test_keep_alive_counts_its_holders(timed: Lives, world: World, awake: Any) -> None:
    holding = asyncio.create_task(awake.call(Counter.hold_twice))
    await until(lambda: world.did["twice"])
    world.open("twice")
    await until(lambda: world.did["once"])
    assert len(await heartbeats(timed, awake)) == 1, "one holder is left"
    world.open("once")
    await soon(holding)
    assert await heartbeats(timed, awake) == []


async def test_keep_alive_ends_with_an_error_too(timed: Lives, awake: Any) -> None:
    with pytest.raises(ValueError, match="no"):
        await awake.call(Counter.hold_and_fail)
    assert await heartbeats(timed, awake) == []


async def test_keep_alive_while_something_is_awaited(timed: Lives, world: World, awake: Any) -> None:
    holding = asyncio.create_task(awake.call(Counter.hold_while))
    await until(lambda: world.did["while"])
    assert len(await heartbeats(timed, awake)) == 1
    world.open("while")
    assert await soon(holding) == "while"
    assert await heartbeats(timed, awake) == []


async def test_a_session_that_was_kept_alive_is_woken_if_its_host_dies(
    timed: Lives, clock: ManualClock, world: World, awake: Any
) -> None:
    holding = asyncio.create_task(awake.call(Counter.hold, "held"))
    await until(lambda: world.did["held"])
    assert world.did["start"] == 1
    await timed.kill(timed.here)
    await asyncio.gather(holding, return_exceptions=True)
    rt = await timed.begin(Counter)
    await clock.advance(31)
    await until(lambda: world.did["start"] == 2)
    session = rt.session(Counter, "one")
    await until(lambda: _none(timed, session), "nobody holds it any more")


async def _none(timed: Lives, session: Any) -> bool:
    return not await heartbeats(timed, session)
