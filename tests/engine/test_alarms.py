"""Alarms: set, moved, cancelled, fired by the clock or by hand; missed runs; long and failing work."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import (
    Agent,
    BadName,
    Cron,
    Every,
    Fiber,
    NotFound,
    Session,
    Unserialisable,
    current_fiber,
    fiber,
)
from perdure.engine.values import decode
from perdure.testing.clock import ManualClock

from .lives import Lives, World, drive, settle, soon, until

HOUR = 3600


class Bell(Agent):
    world: World
    clock: ManualClock

    async def ring(self, *words: str) -> str:
        self.world.do(" ".join(("ring", *words)))
        return "rung"

    async def slow(self) -> None:
        await self.world.do_and_wait("slow")

    async def fail(self) -> None:
        self.world.do("fail")
        raise ValueError("cracked")

    @fiber
    async def as_fiber(self, f: Fiber, what: str) -> str:
        return await f.op("ring", self.world.do, what, effect="once")

    async def in_steps(self) -> list[Any]:
        f = current_fiber()
        if f.stashed is None:
            await f.op("ring", self.world.do, "ring", effect="once")
            await self.stash("rung")
        await self.world.gate("steps").wait()
        return [f.name, f.stashed]

    def plain(self) -> str:
        return self.world.do("plain")

    async def again(self) -> None:
        self.world.do("again")
        await self.schedule(10, self.again)


@pytest.fixture(autouse=True)
def _world(world: World, clock: ManualClock) -> None:
    Bell.world, Bell.clock = world, clock


@pytest.fixture
async def session(timed: Lives) -> Session[Bell]:
    return (await timed.begin(Bell)).session(Bell, "one")


async def put(session: Session[Bell], when: Any, method: Any = "ring", *words: str, **more: Any) -> Any:
    return await session.call(Bell.schedule, when, method, *words, **more)


async def ended(session: Session[Bell]) -> list[tuple[str, str, str | None]]:
    return [(one.name, one.outcome, one.error) for one in reversed(await session.ended())]


# --- setting


async def test_an_alarm_rings_once_after_its_delay(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    row = await put(session, 60, "ring", "loud")
    assert (row.method, decode(row.args), row.due_at) == ("ring", ["loud"], clock.now() + 60_000)
    await clock.advance(59.999)
    assert world.did == {}
    await clock.advance(0.001)
    assert world.did == {"ring loud": 1}
    assert await session.alarms() == []
    await clock.advance(HOUR)
    assert world.did == {"ring loud": 1}
    assert await ended(session) == [("alarm:ring", "done", None)]
    (one,) = await session.ended()
    assert decode(one.value) == "rung"


@pytest.mark.parametrize("when", [timedelta(minutes=1), datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)])
async def test_an_alarm_rings_at_its_time(
    clock: ManualClock, world: World, session: Session[Bell], when: Any
) -> None:
    await put(session, when)
    await clock.advance(59)
    assert world.did == {}
    await clock.advance(1)
    assert world.did == {"ring": 1}


@pytest.mark.parametrize("when", [0, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)])
async def test_what_is_due_already_rings_at_once(world: World, session: Session[Bell], when: Any) -> None:
    await put(session, when)
    await until(lambda: world.did["ring"])


async def test_an_interval_rings_again_and_again(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    row = await put(session, Every(60))
    for count in range(1, 6):
        await clock.advance(60)
        assert world.did["ring"] == count
    (standing,) = await session.alarms()
    assert (standing.id, standing.due_at) == (row.id, clock.now() + 60_000)


async def test_cron_rings_by_the_clock_of_its_zone(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    """It is 22:13:20 UTC, 23:13:20 in Berlin."""
    row = await put(session, Cron("0 9 * * *", "Europe/Berlin"))
    assert datetime.fromtimestamp(row.due_at / 1000, UTC) == datetime(2023, 11, 15, 8, tzinfo=UTC)
    session._host.store.poll_every = 600.0
    await clock.advance(9 * HOUR + 46 * 60 + 39)
    assert world.did == {}
    await clock.advance(1)
    assert world.did["ring"] == 1
    await clock.advance(24 * HOUR)
    assert world.did["ring"] == 2


async def test_an_alarm_may_set_the_next_one(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, 10, "again")
    for count in range(1, 4):
        await clock.advance(10)
        assert world.did["again"] == count
    assert len(await session.alarms()) == 1


async def test_a_plain_method_can_be_an_alarm(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, 1, "plain")
    await clock.advance(1)
    assert world.did == {"plain": 1}


# --- keys


async def test_a_repeating_alarm_that_is_set_again_unchanged_stays_as_it_is(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    first = await put(session, Every(60), "ring", "a", key="hourly")
    await clock.advance(30)
    assert await put(session, Every(60), "ring", "a", key="hourly") == first
    await clock.advance(30)
    assert world.did == {"ring a": 1}
    assert len(await session.alarms()) == 1


@pytest.mark.parametrize(
    ("when", "words", "more"),
    [(Every(90), ["a"], {}), (Every(60), ["b"], {}), (Every(60), ["a"], {"missed": "each"})],
    ids=["schedule", "arguments", "missed"],
)
async def test_a_repeating_alarm_that_is_set_again_changed_moves(
    clock: ManualClock, session: Session[Bell], when: Any, words: list[str], more: dict[str, Any]
) -> None:
    first = await put(session, Every(60), "ring", "a", key="hourly")
    await clock.advance(30)
    second = await put(session, when, "ring", *words, key="hourly", **more)
    assert second.id == first.id
    assert second.due_at == clock.now() + int(when.seconds * 1000)
    assert [one.due_at for one in await session.alarms()] == [second.due_at]


async def test_a_one_time_alarm_that_is_set_again_moves(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, 60, key="reminder")
    await clock.advance(30)
    await put(session, 60, key="reminder")
    await clock.advance(59)
    assert world.did == {}
    await clock.advance(1)
    assert world.did == {"ring": 1}


async def test_the_same_key_in_another_session_is_another_alarm(timed: Lives, session: Session[Bell]) -> None:
    other = timed.here.session(Bell, "two")
    one, two = await put(session, 60, key="k"), await put(other, 60, key="k")
    assert one.id != two.id
    assert len(await session.alarms()) == len(await other.alarms()) == 1


async def test_alarms_without_a_key_are_all_kept(session: Session[Bell]) -> None:
    for _ in range(3):
        await put(session, 60)
    assert len(await session.alarms()) == 3


# --- list, cancel, by hand


async def test_alarms_are_listed_in_the_order_of_their_time(session: Session[Bell]) -> None:
    for delay in (30, 10, 20):
        await put(session, delay, "ring", str(delay))
    assert [decode(one.args) for one in await session.alarms()] == [["10"], ["20"], ["30"]]
    assert await session.call(Bell.alarms) == await session.alarms()


async def test_a_cancelled_alarm_does_not_ring(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    one, two = await put(session, 60), await put(session, Every(60))
    assert await session.cancel_alarm(one.id) is True
    assert await session.call(Bell.cancel_alarm, two.id) is True
    assert await session.cancel_alarm(one.id) is False
    assert await session.cancel_alarm("nothing") is False
    assert await session.alarms() == []
    await clock.advance(120)
    assert world.did == {}


async def test_an_alarm_of_another_session_can_not_be_cancelled_here(
    timed: Lives, session: Session[Bell]
) -> None:
    row = await put(session, 60)
    assert await timed.here.session(Bell, "two").cancel_alarm(row.id) is False
    assert await session.alarms() == [row]


async def test_a_one_time_alarm_run_by_hand_is_used_up(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    row = await put(session, 60, "ring", "now")
    running = await session.run_alarm(row.id)
    assert await soon(running) == "rung"
    assert await session.alarms() == []
    await clock.advance(120)
    assert world.did == {"ring now": 1}


async def test_a_repeating_alarm_run_by_hand_keeps_its_times(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    row = await put(session, Every(60))
    await soon(await session.run_alarm(row.id))
    assert await session.alarms() == [row]
    await clock.advance(60)
    assert world.did == {"ring": 2}


async def test_what_does_not_exist_can_not_be_run(session: Session[Bell]) -> None:
    with pytest.raises(NotFound, match="alarm nothing"):
        await session.run_alarm("nothing")


# --- missed runs


async def night(timed: Lives, clock: ManualClock, hours: float) -> Session[Bell]:
    """The host dies, and only after some hours there is another one."""
    await timed.kill(timed.here)
    await clock.advance(hours * HOUR)
    return (await timed.begin(Bell)).session(Bell, "one")


@pytest.mark.parametrize(("missed", "rings"), [("collapse", 1), ("each", 8), ("skip", 0)])
async def test_runs_that_were_missed_collapse_or_are_made_up_for_or_are_skipped(
    timed: Lives, clock: ManualClock, world: World, session: Session[Bell], missed: Any, rings: int
) -> None:
    row = await put(session, Every(HOUR), missed=missed)
    session = await night(timed, clock, 8.5)
    await until(lambda: _due_at(session, row.due_at + 8 * HOUR * 1000))
    await settle()
    assert world.did["ring"] == rings
    await clock.advance(HOUR / 2)
    await until(lambda: world.did["ring"] == rings + 1)


async def _due_at(session: Session[Bell], due_at: int) -> bool:
    return [one.due_at for one in await session.alarms()] == [due_at]


async def test_a_run_that_is_a_little_late_is_not_skipped(
    timed: Lives, clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, Every(HOUR), missed="skip")
    await night(timed, clock, 1 + 30 / HOUR)
    await until(lambda: world.did["ring"])


async def test_a_one_time_alarm_that_was_missed_rings_when_there_is_a_host(
    timed: Lives, clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, 60)
    session = await night(timed, clock, 10)
    await until(lambda: world.did["ring"])
    assert await session.alarms() == []


async def test_a_run_that_was_cut_goes_on_at_the_next_host_and_does_not_ring_twice(
    timed: Lives, clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, 1, "in_steps")
    await clock.advance(1)
    await until(lambda: _stashed(timed, session))
    await timed.kill(timed.here)
    world.open("steps")
    session = (await timed.begin(Bell)).session(Bell, "one")
    await until(session.ended)
    (one,) = await session.ended()
    assert decode(one.value) == ["alarm:in_steps", "rung"]
    assert world.did == {"ring": 1}


async def _only(session: Session[Bell], name: str) -> bool:
    return [row.name for row in await session.fibers()] == [name]


async def _stashed(timed: Lives, session: Session[Bell]) -> bool:
    rows = await timed.store.fibers(session.id)
    return bool(rows) and rows[0].stash is not None


# --- work


async def test_long_work_holds_up_neither_the_loop_nor_other_sessions(
    timed: Lives, clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    other = timed.here.session(Bell, "two")
    await put(session, 1, "slow")
    await put(session, 2, "as_fiber", "beside")
    await put(other, 2)
    await clock.advance(2)
    await until(lambda: world.did["ring"] and world.did["beside"])
    assert world.did["slow"] == 1
    await until(lambda: _only(session, "alarm:slow"))
    world.open("slow")
    await until(lambda: _all_ended(session))


async def _all_ended(session: Session[Bell]) -> bool:
    return not await session.fibers()


async def test_an_interval_that_is_due_while_it_still_runs_is_passed_over(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, Every(10), "slow")
    await clock.advance(55)
    assert world.did["slow"] == 1
    world.open("slow")
    await clock.advance(10)
    assert world.did["slow"] == 2


async def test_with_each_an_interval_that_is_due_while_it_still_runs_runs_beside_itself(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, Every(10), "slow", missed="each")
    await clock.advance(30)
    assert [row.name for row in await session.fibers()] == ["alarm:slow"] * 3
    world.open("slow")
    await until(lambda: world.did["slow"] == 3)


async def test_a_run_that_fails_is_visible_and_the_interval_goes_on(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, Every(10), "fail")
    for count in range(1, 4):
        await clock.advance(10)
        assert world.did["fail"] == count
    assert await ended(session) == [("alarm:fail", "failed", "ValueError: cracked")] * 3
    assert len(await session.alarms()) == 1


async def test_a_method_that_is_gone_fails_visibly(
    timed: Lives, clock: ManualClock, session: Session[Bell]
) -> None:
    class Dumb(Agent): ...

    Dumb.__name__ = "Bell"
    await put(session, 60)
    await timed.kill(timed.here)
    rt = await timed.begin(Dumb)
    await clock.advance(60)
    left = rt.session(Dumb, "one")
    await until(left.ended)
    (one,) = await left.ended()
    assert one.outcome == "failed"
    assert "Bell has no method 'ring'" in (one.error or "")


async def test_an_alarm_on_a_fiber_method_runs_as_that(
    clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    await put(session, 1, Bell.as_fiber, "snow")
    await clock.advance(1)
    await until(session.ended)
    (one,) = await session.ended()
    assert (one.name, one.outcome, decode(one.value)) == ("alarm:as_fiber", "done", "snow")
    assert world.did == {"snow": 1}


async def test_a_bound_method_or_its_name_is_the_same(clock: ManualClock, world: World, timed: Lives) -> None:
    class Setting(Bell):
        async def begin(self) -> None:
            await self.schedule(1, self.ring, "bound")
            await self.schedule(1, self.as_fiber, "fiber")
            await self.schedule(1, "ring", "by name")

    rt = await timed.begin(Setting)
    await rt.session(Setting, "one").call(Setting.begin)
    await clock.advance(1)
    await until(lambda: len(world.did) == 3)
    assert world.did == {"ring bound": 1, "fiber": 1, "ring by name": 1}


# --- alarms set by fibers


@pytest.mark.parametrize("key", [None, "reminder"])
@pytest.mark.parametrize("when", [60, Every(60)], ids=["once", "repeating"])
async def test_an_alarm_set_by_a_fiber_is_set_once_and_takes_its_step_in_every_life(
    timed: Lives, clock: ManualClock, world: World, when: Any, key: str | None
) -> None:
    class Setting(Bell):
        @fiber
        async def work(self, f: Fiber) -> str:
            await self.schedule(when, self.ring, key=key)
            paid = await f.op("pay", world.do, "pay", effect="once")
            await world.gate("go on").wait()
            return paid

    rt = await timed.begin(Setting)
    session = rt.session(Setting, "one")
    running = await session.start(Setting.work)

    async def paid() -> bool:
        return any(op.kind == "pay" and op.outcome == "done" for op in await session.ops())

    await until(paid)
    (row,) = await session.alarms()
    await timed.kill(rt)
    await clock.advance(30)
    rt = await timed.begin(Setting)
    world.open("go on")
    session = rt.session(Setting, "one")
    assert await drive(clock, session.wait(running.id)) == "pay"
    assert world.did["pay"] == 1
    assert await session.alarms() == [row]


# --- bad input


async def test_what_can_not_be_an_alarm_is_refused_and_changes_nothing(session: Session[Bell]) -> None:
    for wrong, error in (
        (put(session, 1, "nothing"), NotFound),
        (put(session, 1, "_private"), NotFound),
        (put(session, 1, "world"), NotFound),
        (put(session, 1, ""), BadName),
        (put(session, 1, "ring", object()), Unserialisable),
        (put(session, 1, "ring", key=""), BadName),
        (put(session, 1, "ring", key="x\0"), BadName),
    ):
        with pytest.raises(error):
            await wrong
    assert await session.alarms() == []


async def test_many_alarms_of_many_sessions_all_ring(
    timed: Lives, clock: ManualClock, world: World, session: Session[Bell]
) -> None:
    rt = timed.here
    await asyncio.gather(*(put(rt.session(Bell, f"s{n}"), 1 + n % 3, "ring", str(n)) for n in range(60)))
    await clock.advance(3)
    await until(lambda: len(world.did) == 60)
    assert set(world.did.values()) == {1}
