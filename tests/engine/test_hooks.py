"""`on_fiber_recovered`: the orphan's row stays until the hook has decided. Never none, never two."""

import asyncio
from typing import Any

import pytest

from perdure import (
    Agent,
    Continue,
    Exhausted,
    Fail,
    Fiber,
    FiberCancelled,
    FiberFailed,
    FiberRecovery,
    Finish,
    Unrecovered,
    fiber,
)
from perdure.engine.values import decode
from perdure.testing.clock import ManualClock

from .lives import Lives, World, settle, soon, until

pytestmark = pytest.mark.not_evicted("an ad-hoc function has nothing to re-enter with")


class Hooked(Agent):
    """An agent whose hook does what the test says."""

    world: World
    hook: Any = None
    seen: list[FiberRecovery]

    async def begin(self, stash: Any = None, key: str | None = None) -> str:
        async def body(f: Fiber) -> str:
            await f.op("pay", self.world.do, "pay", effect="once")
            if stash is not None:
                await f.stash(stash)
            return await self.world.do_and_wait("first life")

        return await self.run_fiber("research", body, key=key).started()

    async def on_fiber_recovered(self, cut: FiberRecovery) -> Any:
        Hooked.seen.append(cut)
        return await Hooked.hook(self, cut)

    @fiber
    async def as_method(self, f: Fiber, what: str) -> list[Any]:
        await self.world.gate("as method").wait()
        return [what, f.attempt, f.stashed]


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    Hooked.world = world
    Hooked.seen = []
    Hooked.hook = None


async def begun(lives: Lives, agent: type[Hooked] = Hooked, **more: Any) -> str:
    """A fiber in mid-work, with its first op settled."""
    rt = await lives.begin(agent)
    running = await rt.session(agent, "one").call(agent.begin, **more)
    await until(lambda: Hooked.world.did["first life"])
    return str(running)


async def cut(lives: Lives, hook: Any, **more: Any) -> str:
    """A fiber that was cut, in the next life, with this hook."""
    Hooked.hook = hook
    running = await begun(lives, **more)
    await lives.kill(lives.here)
    await lives.begin(Hooked)
    return running


async def test_the_hook_learns_what_was_cut(timed: Lives, clock: ManualClock) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> None: ...

    Hooked.hook = hook
    running = await begun(timed, stash={"done": 1})
    await clock.advance(90)
    await timed.kill(timed.here)
    await timed.begin(Hooked)
    await until(lambda: Hooked.seen)
    (seen,) = Hooked.seen
    assert (seen.id, seen.name, seen.stash, seen.attempt) == (running, "research", {"done": 1}, 1)
    assert seen.age == 90.0


@pytest.mark.parametrize(
    ("answer", "outcome", "value", "error"),
    [
        (None, "done", None, None),
        (Finish("a report"), "done", "a report", None),
        (Finish(), "done", None, None),
        (Fail("no time"), "failed", None, "no time"),
    ],
)
async def test_the_hook_decides_what_becomes_of_the_fiber(
    lives: Lives, answer: Any, outcome: str, value: Any, error: str | None
) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        return answer

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    if outcome == "failed":
        with pytest.raises(FiberFailed, match="no time"):
            await soon(session.wait(running))
    else:
        assert await soon(session.wait(running)) == value
    (ended,) = await session.ended()
    assert (ended.id, ended.outcome, ended.error) == (running, outcome, error)
    assert await session.fibers() == []


async def test_continue_goes_on_with_the_same_fiber(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        async def go_on(f: Fiber) -> list[Any]:
            mailed = await f.op("mail", world.do, "mail", effect="once")
            return [f.id, f.attempt, f.stashed, mailed]

        return Continue(go_on)

    running = await cut(lives, hook, stash={"done": 1})
    session = lives.here.session(Hooked, "one")
    assert await soon(session.wait(running)) == [running, 1, {"done": 1}, "mail"]
    assert world.did["pay"] == 1


async def test_a_fiber_started_in_the_hook_takes_over_the_row(lives: Lives, world: World) -> None:
    started: list[str] = []

    async def hook(agent: Hooked, cut: FiberRecovery) -> None:
        async def go_on(f: Fiber) -> list[Any]:
            paid = await f.op("pay", world.do, "pay", effect="once")
            return [f.id, f.name, f.attempt, f.stashed, paid]

        started.append(await agent.run_fiber("research, again", go_on).started())

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    assert await soon(session.wait(running)) == [running, "research, again", 1, None, "pay"]
    assert started == [running]
    assert world.did["pay"] == 1, "the op is replayed at its place"
    assert len(await session.ended()) == 1


async def test_a_fiber_started_in_the_hook_and_left_takes_over_the_row(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> None:
        agent.run_fiber(cut.name, lambda f: world.do_and_wait("second life"))

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    await until(lambda: world.did["second life"])
    assert [(row.id, row.attempt) for row in await session.fibers()] == [(running, 1)]
    world.open("second life")
    assert await soon(session.wait(running)) == "second life"


async def test_the_hook_may_await_the_fiber_that_it_started(lives: Lives) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> None:
        async def go_on(f: Fiber) -> str:
            return "second life"

        Hooked.world.do(await agent.run_fiber(cut.name, go_on))

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    assert await soon(session.wait(running)) == "second life"
    await until(lambda: Hooked.world.did["second life"])
    assert len(await session.ended()) == 1


async def test_a_second_fiber_started_in_the_hook_is_a_new_one(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> None:
        for name in ("a", "b"):
            agent.run_fiber(name, _named(world, name))

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    await until(lambda: world.did["a"] and world.did["b"])
    rows = {row.name: (row.id == running, row.attempt) for row in await session.fibers()}
    assert rows == {"a": (True, 1), "b": (False, 0)}


def _named(world: World, name: str) -> Any:
    async def body(f: Fiber) -> str:
        return await world.do_and_wait(name)

    return body


async def test_a_method_fiber_started_in_the_hook_takes_over_too(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> None:
        agent.as_method("snow")

    running = await cut(lives, hook, stash="kept")
    session = lives.here.session(Hooked, "one")
    await until(lambda: _is_method(lives, running))
    assert len(await session.fibers()) == 1
    await lives.kill(lives.here)
    rt = await lives.begin(Hooked)
    world.open("as method")
    assert await soon(rt.session(Hooked, "one").wait(running)) == ["snow", 2, "kept"]
    assert len(Hooked.seen) == 1, "a method needs no hook"
    assert len(await rt.session(Hooked, "one").ended()) == 1


async def _is_method(lives: Lives, running: str) -> bool:
    row = await lives.store.fiber(running)
    return row is not None and (row.kind, row.name) == ("method", "as_method")


async def test_a_fiber_of_another_session_started_in_the_hook_takes_nothing_over(
    lives: Lives, world: World
) -> None:
    class Other(Agent):
        async def begin(self) -> str:
            return await self.run_fiber("other", _named(world, "other")).started()

    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        started = await lives.here.session(Other, "two").call(Other.begin)
        return Finish(started)

    running = await cut(lives, hook)
    rt = lives.here
    other = await soon(rt.session(Hooked, "one").wait(running))
    assert other != running
    assert [row.id for row in await rt.session(Other, "two").fibers()] == [other]


async def test_the_key_goes_on_with_the_fiber(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> None:
        agent.run_fiber(cut.name, _named(world, "second life"))

    running = await cut(lives, hook, key="research snow")
    session = lives.here.session(Hooked, "one")
    await until(lambda: world.did["second life"])
    assert await session.call(Hooked.begin, key="research snow") == running


# --- hooks that fail


@pytest.mark.parametrize(
    "what", ["raises", "returns a string", "finishes with a set", "fails with an object"]
)
async def test_a_hook_that_fails_is_tried_again_boundedly(lives: Lives, what: str) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        match what:
            case "raises":
                raise ValueError("not now")
            case "returns a string":
                return "done"
            case "finishes with a set":
                return Finish({1, 2})
            case _:
                return Fail(object())  # type: ignore[arg-type]

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    with pytest.raises((Exhausted, FiberFailed)):
        await soon(session.wait(running))
    assert [one.attempt for one in Hooked.seen] == [1, 2, 3, 4, 5]
    assert await session.fibers() == []
    assert [one.outcome for one in await session.ended()] == ["failed"]


async def test_a_hook_that_fails_once_is_asked_again(lives: Lives) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        if cut.attempt == 1:
            raise ValueError("not now")
        return Finish("now")

    running = await cut(lives, hook)
    assert await soon(lives.here.session(Hooked, "one").wait(running)) == "now"


async def test_the_attempts_of_a_failing_hook_are_spaced(timed: Lives, clock: ManualClock) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        raise ValueError("not now")

    await cut(timed, hook)
    await until(lambda: len(Hooked.seen) == 1)
    for times, pause in enumerate((1, 5, 25, 60), start=2):
        await clock.advance(pause - 0.5)
        assert len(Hooked.seen) == times - 1
        await clock.advance(0.5)
        await until(lambda: len(Hooked.seen) == times)  # noqa: B023


async def test_a_hook_that_fails_after_it_started_a_fiber_has_decided(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        agent.run_fiber(cut.name, _named(world, "second life"))
        raise ValueError("too late")

    running = await cut(lives, hook)
    await until(lambda: world.did["second life"])
    await settle()
    assert len(Hooked.seen) == 1
    world.open("second life")
    assert await soon(lives.here.session(Hooked, "one").wait(running)) == "second life"


async def test_a_death_in_the_hook_is_an_attempt_and_the_hook_is_asked_again(
    lives: Lives, world: World
) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        await world.do_and_wait(f"hook {cut.attempt}")
        return Finish("at last")

    running = await cut(lives, hook)
    await until(lambda: world.did["hook 1"])
    row = await lives.store.fiber(running)
    assert row is not None, "the row stays until the decision"
    await lives.kill(lives.here)
    rt = await lives.begin(Hooked)
    await until(lambda: world.did["hook 2"])
    world.open("hook 2")
    assert await soon(rt.session(Hooked, "one").wait(running)) == "at last"
    assert [one.attempt for one in Hooked.seen] == [1, 2]


async def test_a_fiber_in_its_hook_can_be_cancelled(lives: Lives, world: World) -> None:
    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        await world.do_and_wait("hook")
        return Continue(_named(world, "second life"))

    running = await cut(lives, hook)
    session = lives.here.session(Hooked, "one")
    await until(lambda: world.did["hook"])
    assert await soon(session.cancel(running)) is True
    world.open("hook")
    with pytest.raises(FiberCancelled):
        await soon(session.wait(running))
    await settle()
    assert "second life" not in world.did
    assert [one.outcome for one in await session.ended()] == ["cancelled"]


# --- without a hook


async def test_without_a_hook_an_ad_hoc_fiber_fails_with_a_typed_error_an_event_and_a_warning(
    lives: Lives, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Hookless(Agent):
        async def begin(self) -> str:
            return await self.run_fiber("research", _named(world, "first life")).started()

    rt = await lives.begin(Hookless)
    running = await rt.session(Hookless, "one").call(Hookless.begin)
    await lives.kill(rt)
    caplog.clear()
    rt = await lives.begin(Hookless)
    session = rt.session(Hookless, "one")
    with pytest.raises((Unrecovered, FiberFailed), match="no `on_fiber_recovered` that takes it up"):
        await soon(session.wait(running))
    with pytest.raises(FiberFailed, match="Unrecovered"):
        await session.wait(running)
    (event,) = await session.events()
    assert (event.type, decode(event.body)["fiber"]) == ("fiber.failed", running)
    warnings = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert any(running in said and "on_fiber_recovered" in said for said in warnings)


async def test_methods_and_alarms_never_reach_the_hook(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    class Ringing(Hooked):
        async def begin(self, stash: Any = None, key: str | None = None) -> str:
            await self.schedule(1, self.ring, "bell")
            return await self.as_method("snow").started()

        async def ring(self, what: str) -> None:
            await self.world.do_and_wait("ring")

    rt = await timed.begin(Ringing)
    running = await rt.session(Ringing, "one").call(Ringing.begin)
    await clock.advance(1)
    await until(lambda: world.did["ring"])
    await timed.kill(rt)
    rt = await timed.begin(Ringing)
    await until(lambda: world.did["ring"] == 2)
    world.open("ring", "as method")
    session = rt.session(Ringing, "one")
    assert await soon(session.wait(running)) == ["snow", 1, None]

    async def all_ended() -> bool:
        return len(await session.ended()) == 2

    await until(all_ended)
    assert [one.outcome for one in await session.ended()] == ["done", "done"]
    assert Hooked.seen == []


async def test_hooks_of_one_session_run_one_at_a_time(lives: Lives, world: World) -> None:
    inside = 0

    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        inside -= 1
        return Finish("one at a time")

    Hooked.hook = hook
    rt = await lives.begin(Hooked)
    started = [await rt.session(Hooked, "one").call(Hooked.begin) for _ in range(3)]
    await until(lambda: world.did["first life"] == 3)
    await lives.kill(rt)
    rt = await lives.begin(Hooked)
    session = rt.session(Hooked, "one")
    assert [await soon(session.wait(one)) for one in started] == ["one at a time"] * 3


async def test_a_hook_that_would_wait_for_the_caller_of_its_session_fails_once(lives: Lives) -> None:
    """The caller waits for the session, the session for its hook, and the hook for the caller."""

    class Caller(Agent):
        async def ask(self) -> Any:
            return await rt.session(Hooked, "one").call(Hooked.alarms)

        async def told(self) -> str:
            return "told"

    async def hook(agent: Hooked, cut: FiberRecovery) -> Any:
        return Finish(await rt.session(Caller, "two").call(Caller.told))

    Hooked.hook = hook
    running = await begun(lives)
    await lives.kill(lives.here)
    rt = await lives.begin()
    rt.host.register(Caller)
    assert await soon(rt.session(Caller, "two").call(Caller.ask)) == []
    assert await soon(rt.session(Hooked, "one").wait(running)) == "told"
    assert len(Hooked.seen) <= 2
