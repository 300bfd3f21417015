"""An orderly end: what can go on elsewhere goes on there, and it is no attempt."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from perdure import (
    Agent,
    DidNotHappen,
    Draining,
    Fiber,
    Happened,
    Interrupted,
    Runtime,
    Session,
    Settings,
    Status,
    fiber,
)
from perdure.core.facts import Effect

from .lives import Lives, World, hold_before_calls, settle, soon, until


class Mover(Agent):
    world: World

    @fiber
    async def work(self, f: Fiber) -> list[Any]:
        self.world.do("enter")
        await self.world.gate("go on").wait()
        return [f.attempt, f.stashed]

    @fiber
    async def act(self, f: Fiber, effect: Effect, with_handle: bool = False) -> str:
        handle = "run-7" if with_handle else None
        follow = self.follow if with_handle else None
        return await f.op("act", self.world.do_and_wait, "act", effect=effect, handle=handle, reattach=follow)

    @fiber
    async def act_verified(self, f: Fiber) -> str:
        return await f.op("act", self.world.do_and_wait, "act", effect="once", verify=self.verify)

    @fiber
    async def act_twice(self, f: Fiber) -> list[str]:
        first = await f.op("act", self.world.do_and_wait, "act", effect="once")
        return [first, await f.op("then", self.world.do, "then", effect="once")]

    async def follow(self, handle: Any, cursor: Any) -> str:
        return f"followed {handle}"

    async def verify(self, name: str) -> Any:
        self.world.do("verify")
        return Happened("verified")

    async def method(self) -> str:
        return "here"


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Mover.world = world


def with_grace(settings: Settings, seconds: float) -> Settings:
    return replace(settings, grace=seconds)


async def moved(lives: Lives, rt: Runtime) -> Session[Mover]:
    """The session at the next host, after this one ended in order."""
    await soon(lives.leave(rt))
    return (await lives.begin(Mover)).session(Mover, "one")


async def attempts(lives: Lives, running: str) -> tuple[int, int, str | None]:
    row = await lives.store.fiber(running)
    assert row is not None
    return row.attempt, row.stalled, row.host


async def test_a_fiber_goes_on_at_the_next_host_and_it_is_no_attempt(lives: Lives, world: World) -> None:
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.work)).id
    await until(lambda: world.did["enter"])
    await soon(lives.leave(rt))
    assert await attempts(lives, running) == (0, 0, None)
    row = await lives.store.session((await lives.store.sessions())[0].id)
    assert row is not None
    assert row.host is None
    rt = await lives.begin(Mover)
    world.open("go on")
    assert await soon(rt.session(Mover, "one").wait(running)) == [0, None]


async def test_two_hosts_at_once_hand_over_without_a_pause(lives: Lives, world: World) -> None:
    old = await lives.begin(Mover)
    running = (await old.session(Mover, "one").start(Mover.work)).id
    await until(lambda: world.did["enter"])
    new = await lives.begin(Mover)
    before = world.did["enter"]
    await soon(lives.leave(old))
    await until(lambda: world.did["enter"] > before)
    assert (await attempts(lives, running))[:2] == (0, 0)
    world.open("go on")
    assert await soon(new.session(Mover, "one").wait(running)) == [0, None]


async def test_attempts_that_were_made_are_kept_by_a_hand_over(lives: Lives, world: World) -> None:
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.work)).id
    await until(lambda: world.did["enter"])
    await lives.kill(rt)
    rt = await lives.begin(Mover)
    await until(lambda: _attempted(lives, running, 1))
    await soon(lives.leave(rt))
    assert await attempts(lives, running) == (1, 1, None)
    rt = await lives.begin(Mover)
    world.open("go on")
    assert await soon(rt.session(Mover, "one").wait(running)) == [1, None]


async def _attempted(lives: Lives, running: str, count: int) -> bool:
    return (await attempts(lives, running))[0] == count


@pytest.mark.parametrize("effect", ["read", "keyed"])
async def test_reads_and_keyed_ops_are_cut_at_once_and_made_again(
    lives: Lives, world: World, effect: Effect
) -> None:
    lives.settings = with_grace(lives.settings, 3600)
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act, effect)).id
    await until(lambda: world.did["act"])
    session = await moved(lives, rt)
    world.open("act")
    assert await soon(session.wait(running)) == "act"
    assert world.did["act"] == 2


async def test_an_op_with_a_handle_is_handed_over_at_once_and_followed(lives: Lives, world: World) -> None:
    lives.settings = with_grace(lives.settings, 3600)
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act, "once", with_handle=True)).id
    await until(lambda: world.did["act"])
    session = await moved(lives, rt)
    assert await soon(session.wait(running)) == "followed run-7"
    assert world.did == {"act": 1}


async def test_an_op_that_can_be_verified_is_handed_over_at_once(lives: Lives, world: World) -> None:
    lives.settings = with_grace(lives.settings, 3600)
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act_verified)).id
    await until(lambda: world.did["act"])
    session = await moved(lives, rt)
    assert await soon(session.wait(running)) == "verified"
    assert world.did == {"act": 1, "verify": 1}


async def test_a_once_op_may_finish_within_the_grace_period_and_nothing_new_begins(
    lives: Lives, world: World
) -> None:
    lives.settings = with_grace(lives.settings, 3600)
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act_twice)).id
    await until(lambda: world.did["act"])
    leaving = asyncio.create_task(lives.leave(rt))
    await settle()
    assert not leaving.done()
    world.open("act")
    await soon(leaving)
    assert world.did == {"act": 1}
    session = (await lives.begin(Mover)).session(Mover, "one")
    assert await soon(session.wait(running)) == ["act", "then"]
    assert world.did == {"act": 1, "then": 1}


async def test_a_once_op_is_in_doubt_after_the_grace_period(lives: Lives, world: World) -> None:
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act, "once")).id
    await until(lambda: world.did["act"])
    session = await moved(lives, rt)
    with pytest.raises(Interrupted, match="may have executed"):
        await soon(session.wait(running))
    assert world.did == {"act": 1}


async def test_a_second_request_ends_the_grace_period(lives: Lives, world: World) -> None:
    lives.settings = with_grace(lives.settings, 3600)
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act, "once")).id
    await until(lambda: world.did["act"])
    host = rt.host
    leaving = asyncio.create_task(lives.leave(rt))
    await settle()
    assert not leaving.done()
    host.hurry()
    await soon(leaving)
    session = (await lives.begin(Mover)).session(Mover, "one")
    with pytest.raises(Interrupted):
        await soon(session.wait(running))


@pytest.mark.not_evicted("the moment between intent and effect is held by hand")
async def test_an_op_that_was_never_called_is_no_doubt_at_the_next_host(
    lives: Lives, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        hold_before_calls(world, patch)
        rt = await lives.begin(Mover)
        running = (await rt.session(Mover, "one").start(Mover.act, "once")).id
        await until(lambda: world.did["may act"])
        assert len(await lives.store.open_ops(rt.session(Mover, "one").id)) == 1
        await soon(lives.leave(rt))
    rt = await lives.begin(Mover)
    world.open("act")
    assert await soon(rt.session(Mover, "one").wait(running)) == "act"
    assert world.did["act"] == 1


@pytest.mark.not_evicted("the moment between intent and effect is held by hand")
async def test_an_op_that_an_earlier_life_called_stays_in_doubt(
    lives: Lives, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call in this life has not begun, but nobody knows about the one before."""
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act, "keyed")).id
    await until(lambda: world.did["act"])
    await lives.kill(rt)
    with monkeypatch.context() as patch:
        hold_before_calls(world, patch)
        rt = await lives.begin(Mover)
        await until(lambda: world.did["may act"])
        session = rt.session(Mover, "one")
        await session.cancel(running)
        assert [op.outcome for op in await session.ops()] == ["doubt"]


async def test_a_draining_host_takes_no_more_work(lives: Lives, world: World) -> None:
    lives.settings = with_grace(lives.settings, 3600)
    rt = await lives.begin(Mover)
    session = rt.session(Mover, "one")
    await session.start(Mover.act, "once")
    await until(lambda: world.did["act"])
    leaving = asyncio.create_task(lives.leave(rt))
    await settle()
    for refused in (
        session.call(Mover.method),
        session.start(Mover.work),
        rt_session(session, "two").call(Mover.method),
    ):
        with pytest.raises(Draining, match="takes no more work"):
            await soon(refused)
    world.open("act")
    await soon(leaving)
    assert await lives.store.sessions() != []


def rt_session(session: Session[Mover], key: str) -> Session[Mover]:
    return Session(session._host, Mover, key)


async def test_whoever_waits_at_a_host_that_leaves_is_told_so(lives: Lives, world: World) -> None:
    rt = await lives.begin(Mover)
    running = await rt.session(Mover, "one").start(Mover.work)
    waiting = asyncio.ensure_future(running)
    await until(lambda: world.did["enter"])
    await soon(lives.leave(rt))
    with pytest.raises(Draining, match="goes on at the next host"):
        await soon(waiting)


async def test_a_fiber_that_waits_for_an_answer_is_left_as_it_is(lives: Lives, world: World) -> None:
    rt = await lives.begin(Mover)
    running = (await rt.session(Mover, "one").start(Mover.act, "once")).id
    await until(lambda: world.did["act"])
    session = await moved(lives, rt)
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    before = await lives.store.fiber(running)
    session = await moved(lives, lives.here)
    assert await lives.store.fiber(running) == before
    assert await session.status() == Status.INTERRUPTED


async def test_a_stash_that_was_queued_is_written_before_the_hand_over(lives: Lives, world: World) -> None:
    class Stashing(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            if f.stashed is None:
                f.stash("queued")
            await world.gate("go on").wait()
            return f.stashed

    rt = await lives.begin(Stashing)
    running = (await rt.session(Stashing, "one").start(Stashing.work)).id
    await soon(lives.leave(rt))
    rt = await lives.begin(Stashing)
    world.open("go on")
    assert await soon(rt.session(Stashing, "one").wait(running)) == "queued"


async def test_a_fiber_that_waits_for_its_next_attempt_is_handed_over_too(world: World) -> None:
    """Its pause begins anew at the next host, as a hand-over is no death."""
    from perdure.stores import open_store

    store = open_store("memory:")
    lives = Lives(store, Settings(tryout=0.0, grace=0.0))
    try:
        rt = await lives.begin(Mover)
        running = (await rt.session(Mover, "one").start(Mover.work)).id
        for _ in range(2):
            await until(lambda: world.did["enter"])
            await lives.kill(lives.here)
            await lives.begin(Mover)
        await settle()
        await soon(lives.leave(lives.here))
        assert await attempts(lives, running) == (1, 1, None)
        world.did.clear()
        rt = await lives.begin(Mover)
        await until(lambda: world.did["enter"])
        world.open("go on")
        assert await soon(rt.session(Mover, "one").wait(running)) == [1, None]
    finally:
        await lives.end()
        await store.close()


@pytest.mark.not_evicted("verify is asked in the next life only")
async def test_what_verify_excludes_is_made_at_the_next_host(lives: Lives, world: World) -> None:
    class Excluding(Mover):
        async def verify(self, name: str) -> Any:
            return DidNotHappen()

    rt = await lives.begin(Excluding)
    running = (await rt.session(Excluding, "one").start(Excluding.act_verified)).id
    await until(lambda: world.did["act"])
    await soon(lives.leave(rt))
    rt = await lives.begin(Excluding)
    world.open("act")
    assert await soon(rt.session(Excluding, "one").wait(running)) == "act"
    assert world.did["act"] == 2
