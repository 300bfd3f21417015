"""One writer (P3): an owner that lost its lease writes nothing more, and can come back later."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Agent, Fenced, Fiber, OwnedElsewhere, Runtime, Settings, fiber
from perdure.core.identity import session_id
from perdure.core.writes import PutState
from perdure.testing.clock import ManualClock

from .lives import Lives, World, drive, settle, soon, until

LEASE = Settings(lease_lives=15.0, tryout=0.0)


class Guard(Agent):
    world: World
    wants: Callable[[Fiber], Awaitable[Any]]

    @fiber
    async def work(self, f: Fiber) -> str:
        host = self.live.host.id
        self.world.do(f"work at {host}")
        try:
            await self.world.gate(f"go on at {host}").wait()
            await Guard.wants(f)
            return host
        except asyncio.CancelledError:
            self.world.do(f"cancelled at {host}")
            raise
        except Fenced:
            self.world.do(f"fenced at {host}")
            raise

    @fiber
    async def beside(self, f: Fiber) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.world.do(f"beside cancelled at {self.live.host.id}")
            raise

    async def change(self) -> int:
        await self.world.gate("change").wait()
        return await self.set_state("changed")

    async def remind(self) -> None:
        await self.world.gate("change").wait()
        await self.schedule(1, self.change)

    def plain(self) -> str:
        return "plain"


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Guard.world = world
    Guard.wants = nothing


async def nothing(f: Fiber) -> None: ...


async def stash(f: Fiber) -> None:
    await f.stash("too late")


async def stash_now(f: Fiber) -> None:
    f.stash_now("too late")


async def read(f: Fiber) -> None:
    await f.op("read", Guard.world.do, "read", effect="read")


async def once(f: Fiber) -> None:
    await f.op("pay", Guard.world.do, "pay", effect="once")


def pause(rt: Runtime) -> None:
    """The host falls silent: its lease is not renewed any more."""
    rt.host.tenure.end()


async def taken_over(timed: Lives, clock: ManualClock, *methods: Any) -> tuple[Runtime, Runtime, list[str]]:
    """An owner that fell silent, a new one that has taken over, and the fibers in question."""
    timed.settings = LEASE
    old = await timed.begin(Guard)
    started = [(await old.session(Guard, "one").start(method)).id for method in methods]
    await until(lambda: Guard.world.did[f"work at {old.host.id}"])
    pause(old)
    await clock.advance(16)
    new = await timed.begin(Guard)
    await until(lambda: Guard.world.did[f"work at {new.host.id}"])
    return old, new, started


async def everything(timed: Lives) -> list[Any]:
    """What the store holds of the session."""
    session = session_id("Guard", "one")
    row = await timed.store.session(session)
    fibers = await timed.store.fibers(session)
    ops = await timed.store.ops(session)
    return [row, fibers, ops, await timed.store.events(session), await timed.store.state(session)]


@pytest.mark.parametrize("wants", [stash, stash_now, read, once, nothing], ids=lambda one: one.__name__)
async def test_an_owner_that_was_replaced_is_fenced_and_writes_nothing(
    timed: Lives, clock: ManualClock, world: World, wants: Any
) -> None:
    old, new, (running,) = await taken_over(timed, clock, Guard.work)
    Guard.wants = wants
    before = await everything(timed)
    world.open(f"go on at {old.host.id}")
    await until(lambda: old.host.id not in _owners(old))
    await settle()
    assert await everything(timed) == before
    assert "read" not in world.did
    assert "pay" not in world.did
    if wants is not nothing:
        assert world.did[f"fenced at {old.host.id}"] + world.did[f"cancelled at {old.host.id}"] == 1
    Guard.wants = nothing
    world.open(f"go on at {new.host.id}")
    assert await soon(new.session(Guard, "one").wait(running)) == new.host.id
    (ended,) = await new.session(Guard, "one").ended()
    assert (ended.outcome, ended.value) == ("done", f'"{new.host.id}"'.encode())


def _owners(rt: Runtime) -> list[str]:
    return [live.lease.host for live in rt.host._live.values()]


async def test_every_task_of_a_fenced_session_is_cancelled(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    old, _, _ = await taken_over(timed, clock, Guard.beside, Guard.work)
    Guard.wants = stash
    world.open(f"go on at {old.host.id}")
    await until(lambda: world.did[f"beside cancelled at {old.host.id}"])


@pytest.mark.parametrize("method", [Guard.change, Guard.remind], ids=lambda one: one.__name__)
async def test_a_caller_of_a_fenced_session_is_told_so(
    timed: Lives, clock: ManualClock, world: World, method: Any
) -> None:
    timed.settings = LEASE
    old = await timed.begin(Guard)
    await old.session(Guard, "one").start(Guard.work)
    await until(lambda: world.did[f"work at {old.host.id}"])
    calling = asyncio.create_task(old.session(Guard, "one").call(method))
    await settle()
    pause(old)
    await clock.advance(16)
    new = await timed.begin(Guard)
    await until(lambda: world.did[f"work at {new.host.id}"])
    world.open("change")
    with pytest.raises(OwnedElsewhere, match="Guard 'one'"):
        await soon(calling)
    assert await timed.store.state(session_id("Guard", "one")) is None
    assert await timed.store.alarms(session_id("Guard", "one")) == []


async def test_whoever_waits_at_the_old_owner_is_told_so(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    timed.settings = LEASE
    old = await timed.begin(Guard)
    running = await old.session(Guard, "one").start(Guard.work)
    waiting = asyncio.ensure_future(running)
    await until(lambda: world.did[f"work at {old.host.id}"])
    pause(old)
    await clock.advance(16)
    new = await timed.begin(Guard)
    await until(lambda: world.did[f"work at {new.host.id}"])
    Guard.wants = stash
    world.open(f"go on at {old.host.id}")
    with pytest.raises(OwnedElsewhere):
        await soon(waiting)
    Guard.wants = nothing
    world.open(f"go on at {new.host.id}")
    assert await drive(clock, old.session(Guard, "one").wait(running.id)) == new.host.id


async def test_the_old_owner_can_wake_the_session_again(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    old, new, (running,) = await taken_over(timed, clock, Guard.work)
    Guard.wants = stash
    world.open(f"go on at {old.host.id}")
    await until(lambda: not _owners(old))
    await asyncio.to_thread(old.host.tenure.renew)
    Guard.wants = nothing
    await timed.kill(new)
    session = old.session(Guard, "one")
    assert await drive(clock, session.call(Guard.plain)) == "plain"
    assert await drive(clock, session.wait(running)) == old.host.id
    row = await timed.store.session(session.id)
    assert row is not None
    assert (row.epoch, row.host) == (3, old.host.id)


async def test_the_old_owner_waits_until_its_tasks_have_ended_before_it_wakes_the_session_again(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    class Stubborn(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            world.do(f"in at {self.live.lease.epoch}")
            try:
                await asyncio.Event().wait()
            finally:
                if self.live.lease.epoch == 1:
                    await world.do_and_wait("unwinding")
            return "done"

    timed.settings = LEASE
    old = await timed.begin(Stubborn)
    await old.session(Stubborn, "one").start(Stubborn.work)
    await until(lambda: world.did["in at 1"])
    old.host.replaced(await old.host.wake(Stubborn, "one"))
    await until(lambda: world.did["unwinding"])
    waking = asyncio.create_task(old.host.wake(Stubborn, "one"))
    await settle()
    assert not waking.done()
    assert "in at 2" not in world.did
    world.open("unwinding")
    await soon(waking)
    await until(lambda: world.did["in at 2"])


async def test_a_lease_that_expired_but_was_not_taken_is_no_loss(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    timed.settings = LEASE
    rt = await timed.begin(Guard)
    running = await rt.session(Guard, "one").start(Guard.work)
    await until(lambda: world.did[f"work at {rt.host.id}"])
    pause(rt)
    await clock.advance(3600)
    assert not rt.host.tenure.in_force
    Guard.wants = once
    world.open(f"go on at {rt.host.id}")
    assert await soon(running) == rt.host.id
    assert world.did["pay"] == 1
    assert rt.host.tenure.in_force, "it was renewed before the outside was touched"


async def test_a_live_owner_is_not_replaced(timed: Lives, clock: ManualClock, world: World) -> None:
    timed.settings = Settings(lease_lives=1e9, tryout=0.0)
    owner = await timed.begin(Guard)
    await owner.session(Guard, "one").start(Guard.work)
    await until(lambda: world.did[f"work at {owner.host.id}"])
    other = await timed.begin(Guard)
    with pytest.raises(OwnedElsewhere, match="Guard 'one' is at"):
        await drive(clock, other.session(Guard, "one").call(Guard.plain))
    await clock.advance(120)
    assert world.did == {f"work at {owner.host.id}": 1}


async def test_an_idle_session_may_be_taken_from_a_live_owner(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    timed.settings = Settings(lease_lives=1e9, tryout=0.0)
    owner, other = await timed.begin(Guard), await timed.begin(Guard)
    assert await owner.session(Guard, "one").call(Guard.plain) == "plain"
    assert await drive(clock, other.session(Guard, "one").call(Guard.plain)) == "plain"
    assert await drive(clock, owner.session(Guard, "one").call(Guard.plain)) == "plain"
    row = await timed.store.session(session_id("Guard", "one"))
    assert row is not None
    assert (row.epoch, row.host) == (3, owner.host.id)


async def test_of_twelve_hosts_one_takes_the_orphan(timed: Lives, clock: ManualClock, world: World) -> None:
    timed.settings = LEASE
    old = await timed.begin(Guard)
    running = await old.session(Guard, "one").start(Guard.work)
    await until(lambda: world.did[f"work at {old.host.id}"])
    await timed.kill(old)
    world.did.clear()
    hosts = await asyncio.gather(*(timed.begin(Guard) for _ in range(12)))
    await until(lambda: world.did)
    await settle(200)
    assert sum(world.did.values()) == 1
    row = await timed.store.fiber(running.id)
    assert row is not None
    assert row.attempt == 1
    assert sum(len(_owners(one)) for one in hosts) == 1


@pytest.mark.not_evicted("the lease is held by hand")
async def test_the_store_itself_refuses_a_stale_lease(lives: Lives) -> None:
    stale = await lives.store.take("Guard", "one", host="a", hold=0)
    fresh = await lives.store.take("Guard", "one", host="a", hold=0)
    assert (stale.lease.epoch, fresh.lease.epoch) == (1, 2)
    with pytest.raises(Fenced):
        await lives.store.commit(stale.lease, PutState(b"1", 1))
    with pytest.raises(Fenced):
        lives.store.commit_now(stale.lease, PutState(b"1", 1))
    assert await lives.store.state(session_id("Guard", "one")) is None
    await lives.store.commit(fresh.lease, PutState(b"2", 1))
    assert await lives.store.state(session_id("Guard", "one")) == (b"2", 1)


def test_a_fence_is_not_caught_by_user_code_that_catches_errors() -> None:
    assert not issubclass(Fenced, Exception)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("rounds", range(10))
async def test_a_session_can_be_woken_at_any_moment_of_its_unwinding(
    timed: Lives, world: World, rounds: int
) -> None:
    """Also in the very round of the loop in which its last task ends."""

    class Stubborn(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await world.do_and_wait("unwinding")

    rt = await timed.begin(Stubborn)
    await rt.session(Stubborn, "one").start(Stubborn.work)
    await settle()
    rt.host.replaced(await rt.host.wake(Stubborn, "one"))
    await until(lambda: world.did["unwinding"])
    world.open("unwinding")
    for _ in range(rounds):
        await asyncio.sleep(0)
    live = await soon(rt.host.wake(Stubborn, "one"))
    assert live.lease.epoch == 2
