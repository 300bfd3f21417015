"""Code that changed between two lives: reads give way, irreversible ops never do."""

from typing import Any

import pytest

from perdure import (
    Agent,
    BadInput,
    Diverged,
    Fiber,
    FiberFailed,
    Interrupted,
    OpFailed,
    Session,
    Status,
    fiber,
)
from perdure.core.facts import Effect
from perdure.engine.values import decode

from .lives import Lives, World, soon, until


class Changing(Agent):
    """Does `old` in its first life and `new` afterwards, at the same place."""

    world: World
    old: tuple[str, Effect, str]
    new: tuple[str, Effect, str]
    lives = 0
    waits_in_call = False

    @fiber
    async def work(self, f: Fiber) -> Any:
        kind, effect, what = self.old if Changing.lives == 1 else self.new
        waits = Changing.lives == 1 and self.waits_in_call
        done = await f.op(kind, self.world.do_and_wait if waits else self.world.do, what, effect=effect)
        await self.world.gate("go on").wait()
        return [done, await f.op("after", self.world.do, "after", effect="once")]


@pytest.fixture(autouse=True)
def _fresh(world: World) -> None:
    Changing.world = world
    Changing.lives = 1
    Changing.waits_in_call = False


async def changed(
    lives: Lives, old: tuple[str, Effect, str], new: tuple[str, Effect, str], *, in_flight: bool = False
) -> tuple[Session[Changing], str]:
    """A new life with new code, after one in which the old op was settled, or was in flight."""
    Changing.old, Changing.new, Changing.waits_in_call = old, new, in_flight
    rt = await lives.begin(Changing)
    session = rt.session(Changing, "one")
    running = await session.start(Changing.work)

    async def reached() -> bool:
        ops = await session.ops()
        return bool(ops and Changing.world.did[old[2]]) and (in_flight or ops[0].settled_at is not None)

    await until(reached)
    await lives.kill(rt)
    Changing.lives = 2
    Changing.world.open("go on", old[2])
    rt = await lives.begin(Changing)
    return rt.session(Changing, "one"), running.id


PAY: tuple[str, Effect, str] = ("pay", "once", "pay")


@pytest.mark.parametrize(
    "new", [("look", "read", "there"), ("see", "read", "here"), PAY], ids=["arguments", "kind", "effect"]
)
async def test_a_read_is_replaced_by_what_the_code_asks_now(
    lives: Lives, world: World, new: tuple[str, Effect, str]
) -> None:
    session, running = await changed(lives, ("look", "read", "here"), new)
    assert await soon(session.wait(running)) == [new[2], "after"]
    kinds = [(op.step, op.kind, op.effect, decode(op.args)) for op in reversed(await session.ops())]
    assert kinds == [(0, new[0], new[1], [new[2]]), (1, "after", "once", ["after"])]


@pytest.mark.parametrize("effect", ["keyed", "once"])
@pytest.mark.parametrize(
    "new",
    [("mail", "once", "pay"), ("pay", "once", "more"), ("pay", "read", "pay")],
    ids=["kind", "arguments", "effect"],
)
async def test_another_op_over_a_settled_irreversible_one_parks_the_fiber(
    lives: Lives, world: World, effect: Effect, new: tuple[str, Effect, str]
) -> None:
    session, running = await changed(lives, ("pay", effect, "pay"), new)
    with pytest.raises(
        Interrupted, match="another operation at a place where an irreversible one is recorded"
    ):
        await soon(session.wait(running))
    assert world.did == {"pay": 1}
    (row,) = await session.fibers()
    question = decode(row.parked)
    assert question["why"] == "Diverged"
    assert 'recorded pay["pay"]' in question["message"]
    assert f'asked {new[0]}["{new[2]}"]' in question["message"]
    assert await session.status() == Status.INTERRUPTED
    assert await session.doubts() == []


async def test_a_divergence_uses_no_attempts_however_often_it_is_retried(lives: Lives, world: World) -> None:
    session, running = await changed(lives, PAY, ("mail", "once", "mail"))
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    (before,) = await session.fibers()
    for _ in range(7):
        await session.answer(running, "retry")
        with pytest.raises(Interrupted):
            await soon(session.wait(running))
    (after,) = await session.fibers()
    assert (after.attempt, after.stalled) == (before.attempt, before.stalled)
    assert world.did == {"pay": 1}


async def test_retry_after_the_code_was_put_right_replays_what_is_recorded(
    lives: Lives, world: World
) -> None:
    session, running = await changed(lives, PAY, ("mail", "once", "mail"))
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    Changing.new = PAY
    await session.answer(running, "retry")
    assert await soon(session.wait(running)) == ["pay", "after"]
    assert world.did == {"pay": 1, "after": 1}


async def test_continue_lets_the_new_op_stand_in_place_of_the_recorded_one(
    lives: Lives, world: World
) -> None:
    session, running = await changed(lives, PAY, ("mail", "once", "mail"))
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    await session.answer(running, "continue")
    assert await soon(session.wait(running)) == ["mail", "after"]
    assert world.did == {"pay": 1, "mail": 1, "after": 1}
    replaced = [decode(one.body) for one in await session.events() if one.type == "op.replaced"]
    assert [(one["kind"], one["args"], one["outcome"]) for one in replaced] == [("pay", ["pay"], "done")]


async def test_abandon_ends_a_fiber_that_diverged(lives: Lives, world: World) -> None:
    session, running = await changed(lives, PAY, ("mail", "once", "mail"))
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    await session.answer(running, "abandon")
    with pytest.raises(FiberFailed, match="Abandoned"):
        await soon(session.wait(running))
    assert world.did == {"pay": 1}


@pytest.mark.parametrize("new", [("mail", "once", "mail"), ("pay", "once", "more"), ("look", "read", "here")])
async def test_another_op_over_one_in_flight_is_in_doubt(
    lives: Lives, world: World, new: tuple[str, Effect, str]
) -> None:
    session, running = await changed(lives, PAY, new, in_flight=True)
    with pytest.raises(Interrupted, match="may have executed"):
        await soon(session.wait(running))
    assert world.did == {"pay": 1}
    assert [(op.kind, decode(op.args)) for op in await session.doubts()] == [("pay", ["pay"])]


async def test_code_may_catch_the_divergence(lives: Lives, world: World) -> None:
    class Catching(Agent):
        @fiber
        async def work(self, f: Fiber) -> str:
            try:
                await f.op(self.kind(), world.do, self.kind(), effect="once", key="invoice 7")
            except Diverged as diverged:
                return f"{diverged.recorded} / {diverged.asked}"
            await world.gate("never").wait()
            return "it did not diverge"

        def kind(self) -> str:
            return "pay" if Changing.lives == 1 else "mail"

    rt = await lives.begin(Catching)
    session = rt.session(Catching, "one")
    running = await session.start(Catching.work)

    async def paid() -> bool:
        ops = await session.ops()
        return bool(ops) and ops[0].outcome == "done"

    await until(paid)
    await lives.kill(rt)
    Changing.lives = 2
    rt = await lives.begin(Catching)
    result = await soon(rt.session(Catching, "one").wait(running.id))
    assert result == 'pay["pay"] / mail["mail"]'
    assert world.did == {"pay": 1}


async def test_a_failed_op_is_not_run_over_either(lives: Lives, world: World) -> None:
    class Failing(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            if Changing.lives == 1:
                try:
                    await f.op("pay", int, "x", effect="once")
                except OpFailed:
                    world.do("failed")
                    await world.gate("never").wait()
            await f.op("mail", world.do, "mail", effect="once")

    rt = await lives.begin(Failing)
    running = await rt.session(Failing, "one").start(Failing.work)
    await until(lambda: world.did["failed"])
    await lives.kill(rt)
    Changing.lives = 2
    rt = await lives.begin(Failing)
    with pytest.raises(Interrupted):
        await soon(rt.session(Failing, "one").wait(running.id))
    assert "mail" not in world.did


async def test_an_answer_is_one_of_three(lives: Lives) -> None:
    session, running = await changed(lives, PAY, ("mail", "once", "mail"))
    with pytest.raises(Interrupted):
        await soon(session.wait(running))
    with pytest.raises(BadInput, match="retry, continue, abandon"):
        await session.answer(running, "yes")
    assert len(await session.fibers()) == 1
