"""Ops: performed, recorded, replayed; what becomes of errors and of results that cannot be stored."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import (
    Agent,
    BadInput,
    Fiber,
    FiberFailed,
    InProgress,
    Interrupted,
    OpFailed,
    Session,
    TooLarge,
    Unserialisable,
    current_op,
    fiber,
)
from perdure.core.facts import Effect
from perdure.engine.values import LARGEST, decode
from perdure.testing.clock import ManualClock

from .lives import Lives, World, soon, until

EFFECTS: tuple[Effect, ...] = ("read", "keyed", "once")


class Invoice(BaseModel):
    number: int
    paid: bool = False


def agent_of(body: Callable[[Fiber], Any]) -> type[Agent]:
    """An agent whose one fiber is `body`."""

    class Working(Agent):
        @fiber
        async def work(self, f: Fiber) -> Any:
            return await body(f)

    return Working


async def start(lives: Lives, agent: type[Agent]) -> tuple[Session[Any], str]:
    rt = await lives.begin(agent)
    session = rt.session(agent, "one")
    return session, (await session.start(agent.work)).id  # type: ignore[attr-defined]


async def recorded(session: Session[Any]) -> list[tuple[str, str | None]]:
    return [(op.kind, op.outcome) for op in reversed(await session.ops())]


@pytest.mark.parametrize("effect", EFFECTS)
async def test_an_op_is_done_once_and_its_result_is_replayed(
    lives: Lives, world: World, effect: Effect
) -> None:
    async def body(f: Fiber) -> Any:
        value = await f.op("do", world.do, "it", effect=effect)
        await world.gate("go on").wait()
        return value

    agent = agent_of(body)
    session, running = await start(lives, agent)

    async def settled() -> bool:
        return await recorded(session) == [("do", "done")]

    await until(settled)
    rt = lives.here
    await lives.kill(rt)
    world.open("go on")
    rt = await lives.begin(agent)
    session = rt.session(agent, "one")
    assert await soon(session.wait(running)) == "it"
    assert world.did == {"it": 1}
    (op,) = await session.ops()
    assert (op.kind, op.effect, decode(op.args), decode(op.result), op.outcome) == (
        "do",
        effect,
        ["it"],
        "it",
        "done",
    )


@pytest.mark.parametrize("effect", EFFECTS)
async def test_intent_is_committed_before_the_effect_unless_it_only_reads(
    lives: Lives, effect: Effect
) -> None:
    async def body(f: Fiber) -> Any:
        async def call() -> list[Any]:
            found = await lives.store.open_ops(current_op().row.session)
            return [[one.kind, one.effect, one.id == current_op().id] for one in found]

        return await f.op("do", call, effect=effect)

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == ([] if effect == "read" else [["do", effect, True]])


async def test_calls_may_be_plain_functions_or_coroutines(lives: Lives) -> None:
    async def body(f: Fiber) -> Any:
        async def slow(n: int) -> int:
            await asyncio.sleep(0)
            return n

        return [
            await f.op("plain", lambda n: n, 1, effect="read"),
            await f.op("coroutine", slow, 2, effect="once"),
            await f.op("nothing", lambda: None, effect="keyed"),
        ]

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == [1, 2, None]


async def test_an_op_has_the_same_id_in_every_life(lives: Lives, world: World) -> None:
    async def body(f: Fiber) -> Any:
        def charge() -> str:
            world.do(current_op().id)
            return current_op().id

        return await f.op("charge", charge, effect="keyed")

    session, running = await start(lives, agent_of(body))
    identity = await soon(session.wait(running))
    (op,) = await session.ops()
    assert [identity] == list(world.did) == [op.id]


def test_there_is_no_op_outside_one() -> None:
    with pytest.raises(BadInput, match="there is no op here"):
        current_op()


async def test_values_are_live_what_a_replay_would_give(lives: Lives) -> None:
    async def body(f: Fiber) -> Any:
        pair = await f.op("pair", lambda: (1, (2, 3)), effect="once")
        model = await f.op("model", lambda: Invoice(number=7), effect="once")
        return [pair, isinstance(pair, list), model, isinstance(model, dict)]

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == [[1, [2, 3]], True, {"number": 7, "paid": False}, True]


@pytest.mark.parametrize("said_by", ["annotation", "returns"])
async def test_a_model_is_revived_in_every_life(lives: Lives, said_by: str) -> None:
    def annotated() -> Invoice:
        return Invoice(number=7)

    async def body(f: Fiber) -> Any:
        if said_by == "annotation":
            found = await f.op("read", annotated, effect="once")
        else:
            found = await f.op("read", lambda: {"number": 7}, effect="once", returns=Invoice)
        await f.op("next", lambda: 1, effect="once")
        return isinstance(found, Invoice) and found == Invoice(number=7)

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) is True


async def test_a_model_may_be_an_argument(lives: Lives) -> None:
    async def body(f: Fiber) -> Any:
        return await f.op("pay", lambda invoice: invoice.number, Invoice(number=7), effect="once")

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == 7
    assert decode((await session.ops())[0].args) == [{"number": 7, "paid": False}]


@pytest.mark.parametrize("effect", ["keyed", "once"])
async def test_an_error_is_a_recorded_failure_live_and_replayed(
    lives: Lives, world: World, effect: Effect
) -> None:
    async def body(f: Fiber) -> Any:
        def fail() -> None:
            world.do("try")
            raise ValueError("no money")

        try:
            await f.op("pay", fail, effect=effect)
        except OpFailed as failed:
            await f.op("next", lambda: 1, effect="once")
            return [failed.kind, failed.error, str(failed)]

    session, running = await start(lives, agent_of(body))
    said = "The operation was tried and failed. ('pay': ValueError: no money)"
    assert await soon(session.wait(running)) == ["pay", "ValueError: no money", said]
    assert world.did == {"try": 1}
    assert await recorded(session) == [("pay", "failed"), ("next", "done")]


async def test_the_error_of_a_read_is_its_own_and_is_not_recorded(lives: Lives, world: World) -> None:
    async def body(f: Fiber) -> Any:
        def fail() -> None:
            world.do("try")
            raise FileNotFoundError("nothing here")

        try:
            await f.op("look", fail, effect="read")
        except FileNotFoundError as error:
            return str(error)

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == "nothing here"
    assert await recorded(session) == []


async def test_a_failure_that_nobody_catches_fails_the_fiber(lives: Lives) -> None:
    async def body(f: Fiber) -> Any:
        await f.op("pay", int, "x", effect="once")

    session, running = await start(lives, agent_of(body))
    with pytest.raises((OpFailed, FiberFailed), match="invalid literal"):
        await soon(session.wait(running))
    with pytest.raises(FiberFailed, match="OpFailed: The operation was tried and failed"):
        await session.wait(running)


@pytest.mark.parametrize(
    ("result", "error"),
    [({1, 2}, Unserialisable), ("x" * (LARGEST + 1), TooLarge), (float("nan"), Unserialisable)],
    ids=["a set", "too large", "nan"],
)
async def test_a_result_that_cannot_be_stored_is_a_failure_and_is_not_done_again(
    lives: Lives, world: World, result: Any, error: type[Exception]
) -> None:
    async def body(f: Fiber) -> Any:
        def pay() -> Any:
            world.do("pay")
            return result

        try:
            await f.op("pay", pay, effect="once")
        except (OpFailed, error) as failed:
            await f.op("next", lambda: 1, effect="once")
            return str(failed)

    session, running = await start(lives, agent_of(body))
    said = await soon(session.wait(running))
    assert (error.__doc__ or "") in said
    assert world.did == {"pay": 1}
    assert await recorded(session) == [("pay", "failed"), ("next", "done")]
    assert "it executed, but" in decode((await session.ops())[1].result)


async def test_an_error_with_unwritable_words_is_recorded_all_the_same(
    lives: Lives, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "perdure")  # not every reporter of tests can write these words

    async def body(f: Fiber) -> Any:
        def fail() -> None:
            world.do("pay")
            raise ValueError("no such file: \udcff\0")

        try:
            await f.op("pay", fail, effect="once")
        except OpFailed as failed:
            return failed.error

    session, running = await start(lives, agent_of(body))
    assert "no such file" in await soon(session.wait(running))
    assert world.did == {"pay": 1}
    assert await recorded(session) == [("pay", "failed")]


async def test_a_fiber_fails_with_unwritable_words_all_the_same(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "perdure")  # not every reporter of tests can write these words

    async def body(f: Fiber) -> Any:
        raise ValueError("no such file: \udcff\0")

    session, running = await start(lives, agent_of(body))
    with pytest.raises((ValueError, FiberFailed), match="no such file"):
        await soon(session.wait(running))
    with pytest.raises(FiberFailed, match="no such file"):
        await soon(session.wait(running))


@pytest.mark.parametrize("key", ["invoice 7", "a/b:c", "名"])
async def test_an_explicit_key_asked_for_again_is_replayed_wherever_it_stands(
    lives: Lives, world: World, key: str
) -> None:
    async def body(f: Fiber) -> Any:
        first = await f.op("pay", world.do, "pay", effect="once", key=key)
        await f.op("between", lambda: 1, effect="read")
        async with f.scope("elsewhere"):
            again = await f.op("pay", world.do, "pay", effect="once", key=key)
        return [first, again]

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == ["pay", "pay"]
    assert world.did == {"pay": 1}
    assert len(await session.ops()) == 2


async def test_a_failed_op_with_a_key_stays_failed_in_the_same_life(lives: Lives, world: World) -> None:
    async def body(f: Fiber) -> Any:
        def fail() -> None:
            world.do("pay")
            raise ValueError("no")

        said: list[str] = []
        for _ in range(2):
            try:
                await f.op("pay", fail, effect="once", key="invoice 7")
            except OpFailed as failed:
                said.append(failed.error)
        return said

    session, running = await start(lives, agent_of(body))
    assert await soon(session.wait(running)) == ["ValueError: no"] * 2
    assert world.did == {"pay": 1}


async def test_two_fibers_may_use_the_same_key(lives: Lives, world: World) -> None:
    async def body(f: Fiber) -> Any:
        return await f.op("pay", world.do, "pay", effect="once", key="invoice 7")

    agent = agent_of(body)
    session, running = await start(lives, agent)
    assert await soon(session.wait(running)) == "pay"
    other = await session.start(agent.work)  # type: ignore[attr-defined]
    assert await soon(other) == "pay"
    assert world.did == {"pay": 2}


# --- keyed: the same key again


async def test_an_unknown_outcome_of_a_keyed_op_is_tried_again_with_the_same_key(
    timed: Lives, clock: ManualClock
) -> None:
    keys: list[str] = []

    async def body(f: Fiber) -> Any:
        def charge() -> str:
            keys.append(current_op().id)
            if len(keys) < 3:
                raise TimeoutError
            return "charged"

        return await f.op("charge", charge, effect="keyed")

    session, running = await start(timed, agent_of(body))
    await clock.advance(3)
    assert await soon(session.wait(running)) == "charged"
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_an_unknown_outcome_that_stays_unknown_is_a_doubt(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    async def body(f: Fiber) -> Any:
        def charge() -> None:
            world.do("charge")
            raise ConnectionResetError("reset by peer")

        await f.op("charge", charge, effect="keyed")

    session, running = await start(timed, agent_of(body))
    waiting = asyncio.create_task(session.wait(running))
    await clock.advance(11)
    with pytest.raises(Interrupted, match="may have executed"):
        await soon(waiting)
    assert world.did == {"charge": 4}
    assert [op.kind for op in await session.doubts()] == ["charge"]


async def test_what_is_still_in_progress_is_waited_for(
    timed: Lives, clock: ManualClock, world: World
) -> None:
    async def body(f: Fiber) -> Any:
        def charge() -> str:
            if world.did["charge"] < 5:
                world.do("charge")
                raise InProgress(retry_after=30)
            return "charged"

        return await f.op("charge", charge, effect="keyed")

    session, running = await start(timed, agent_of(body))
    waiting = asyncio.create_task(session.wait(running))
    await clock.advance(149)
    assert not waiting.done()
    await clock.advance(1)
    assert await soon(waiting) == "charged"


@pytest.mark.parametrize("error", [TimeoutError("late"), InProgress(retry_after=9)])
async def test_a_key_that_expires_while_it_is_tried_again_is_not_used_any_more(
    timed: Lives, clock: ManualClock, world: World, error: Exception
) -> None:
    async def body(f: Fiber) -> Any:
        def charge() -> None:
            world.do("charge")
            raise error

        await f.op("charge", charge, effect="keyed", key_lives=2)

    session, running = await start(timed, agent_of(body))
    waiting = asyncio.create_task(session.wait(running))
    await clock.advance(60)
    with pytest.raises(Interrupted, match="may have executed"):
        await soon(waiting)
    calls = {"TimeoutError": 2, "InProgress": 1}[type(error).__name__]
    assert world.did == {"charge": calls}


@pytest.mark.parametrize(("waited", "is_run"), [(3599, True), (3600, False)])
async def test_an_open_keyed_op_is_run_again_while_its_key_lives(
    timed: Lives, clock: ManualClock, world: World, waited: int, is_run: bool
) -> None:
    async def body(f: Fiber) -> Any:
        return await f.op("charge", world.do_and_wait, "charge", effect="keyed")

    agent = agent_of(body)
    _, running = await start(timed, agent)
    await until(lambda: world.did["charge"])
    rt = timed.here
    await timed.kill(rt)
    timed.store.poll_every = 1000.0
    await clock.advance(waited)
    world.open("charge")
    rt = await timed.begin(agent)
    await clock.settle()
    waiting = rt.session(agent, "one").wait(running)
    if is_run:
        assert await soon(waiting) == "charge"
        assert world.did == {"charge": 2}
    else:
        with pytest.raises(Interrupted):
            await soon(waiting)
        assert world.did == {"charge": 1}


async def test_the_life_of_a_key_can_be_chosen(timed: Lives, clock: ManualClock) -> None:
    async def body(f: Fiber) -> Any:
        await f.op("short", lambda: 1, effect="keyed", key_lives=1.5)
        await f.op("usual", lambda: 1, effect="keyed")
        await f.op("none", lambda: 1, effect="once", key_lives=1.5)

    session, running = await start(timed, agent_of(body))
    await soon(session.wait(running))
    lives = {op.kind: op.key_until and op.key_until - op.opened_at for op in await session.ops()}
    assert lives == {"short": 1_500, "usual": 3_600_000, "none": None}
