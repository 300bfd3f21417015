"""One line, in words, per wake, orphan, verdict other than Run, doubt and fence."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, Fiber, Interrupted, Settings, current_op, fiber
from perdure.testing.clock import ManualClock

from .lives import Lives, World, soon, until

pytestmark = pytest.mark.not_evicted("the lines of one life are counted")


class Talking(Agent):
    world: World

    @fiber
    async def read(self, f: Fiber) -> Any:
        value = await f.op("look", self.world.do, "look", effect="read")
        await self.world.gate("go on").wait()
        return value

    @fiber
    async def pay(self, f: Fiber) -> Any:
        return await f.op("pay", self.world.do_and_wait, "pay", effect="once")

    @fiber
    async def build(self, f: Fiber) -> Any:
        follow = self.follow
        return await f.op(
            "build", self.world.do_and_wait, "build", effect="once", handle="run-7", reattach=follow
        )

    @fiber
    async def stream(self, f: Fiber) -> Any:
        return await f.op("ask", self.ask, effect="read", resume=self.ask)

    async def ask(self, partial: Any = None) -> Any:
        if partial is None:
            await current_op().emit("a")
            await self.world.do_and_wait("ask")
        return partial

    async def follow(self, handle: Any, cursor: Any) -> Any:
        return handle

    def plain(self) -> str:
        return "plain"


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Talking.world = world


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    caplog.set_level(logging.INFO, "perdure")

    def lines(*words: str) -> list[str]:
        """The lines that contain all these words."""
        found = [one for one in caplog.records if one.name == "perdure" and one.levelno >= logging.INFO]
        return [one.getMessage() for one in found if all(word in one.getMessage() for word in words)]

    return lines


async def cut(lives: Lives, method: Any, until_did: str, caplog: pytest.LogCaptureFixture) -> tuple[Any, str]:
    rt = await lives.begin(Talking)
    running = await rt.session(Talking, "one").start(method)
    await until(lambda: Talking.world.did[until_did])
    await lives.kill(rt)
    caplog.clear()
    rt = await lives.begin(Talking)
    return rt.session(Talking, "one"), running.id


async def test_waking_is_one_line(lives: Lives, said: Any) -> None:
    rt = await lives.begin(Talking)
    for _ in range(3):
        await rt.session(Talking, "a key").call(Talking.plain)
    assert said("awake") == ["session Talking 'a key' is awake, epoch 1"]
    assert len(said()) == 1


async def test_an_op_that_is_simply_run_is_no_line(lives: Lives, said: Any, world: World) -> None:
    world.open("go on")
    rt = await lives.begin(Talking)
    await rt.session(Talking, "one").call(Talking.read)
    assert said("look") == []


async def test_an_orphan_is_one_line(
    lives: Lives, said: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.open("go on")
    session, running = await cut(lives, Talking.pay, "pay", caplog)
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    assert said("was cut") == [f"session Talking 'one': fiber pay ({running}) was cut, attempt 1"]


async def test_a_replay_is_one_line(
    lives: Lives, said: Any, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    session, running = await cut(lives, Talking.read, "look", caplog)
    await until(lambda: said("look") or world.did["look"] > 1)
    world.open("go on")
    await soon(session.wait(running))
    if world.did["look"] == 1:
        assert said("look", running) == [
            f"op look of fiber read ({running}): it was settled before, its result is replayed"
        ]


async def test_a_doubt_is_told_and_so_is_the_fiber_that_waits(
    lives: Lives, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session, running = await cut(lives, Talking.pay, "pay", caplog)
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    (doubt,) = await session.doubts()
    assert said("op pay of fiber") == [
        f"op pay of fiber pay ({running}): it was started and its outcome is not known"
    ]
    assert len(said("may have executed", doubt.id, "waits for an answer")) == 1
    assert len(said("may have executed", doubt.id)) == 2


async def test_following_is_one_line(lives: Lives, said: Any, caplog: pytest.LogCaptureFixture) -> None:
    session, running = await cut(lives, Talking.build, "build", caplog)
    assert await soon(session.wait(running)) == "run-7"
    assert said("op build") == [
        f"op build of fiber build ({running}): it still runs elsewhere and is followed"
    ]


async def test_a_cut_answer_is_one_line(lives: Lives, said: Any, caplog: pytest.LogCaptureFixture) -> None:
    session, running = await cut(lives, Talking.stream, "ask", caplog)
    assert await soon(session.wait(running)) == ["a"]
    assert said("op ask") == [
        f"op ask of fiber stream ({running}): it was cut in mid-answer and goes on as the next step"
    ]


async def test_a_fence_is_one_line(timed: Lives, clock: ManualClock, said: Any, world: World) -> None:
    timed.settings = Settings(lease_lives=15.0, tryout=0.0)
    old = await timed.begin(Talking)
    await old.session(Talking, "one").start(Talking.read)
    await until(lambda: world.did["look"])
    old.host.tenure.end()
    await clock.advance(16)
    await timed.begin(Talking)
    await until(lambda: len(said("awake")) == 2)
    world.open("go on")
    await until(lambda: said("taken over"))
    lines = said("taken over")
    assert lines == ["session Talking 'one' was taken over by another host; this one writes nothing more"]


async def test_an_eviction_is_one_line(timed: Lives, clock: ManualClock, said: Any) -> None:
    rt = await timed.begin(Talking)
    await rt.session(Talking, "one").call(Talking.plain)
    await clock.advance(101)
    assert said("evicted") == ["session Talking 'one' is evicted"]


async def test_nothing_of_all_this_is_an_error(
    lives: Lives, caplog: pytest.LogCaptureFixture, world: World
) -> None:
    session, running = await cut(lives, Talking.pay, "pay", caplog)
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
