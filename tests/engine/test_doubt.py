"""Doubt is a value (P7): an irreversible op whose outcome is unknown is never run again silently."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import (
    Agent,
    DidNotHappen,
    Fiber,
    FiberCancelled,
    FiberFailed,
    Happened,
    Interrupted,
    NotFound,
    OpFailed,
    Session,
    Status,
    Uncertain,
    fiber,
)
from perdure.engine.values import decode

from .lives import Lives, World, hold_before_calls, settle, soon, until


class Receipt(BaseModel):
    number: int


class Payer(Agent):
    world: World
    answer: Any = None

    @fiber
    async def pay(self, f: Fiber) -> Any:
        paid = await f.op("pay", self.world.do_and_wait, "pay", effect="once")
        return [paid, await f.op("mail", self.world.do, "mail", effect="once")]

    @fiber
    async def pay_or_ask(self, f: Fiber) -> Any:
        try:
            paid = await f.op("pay", self.world.do_and_wait, "pay", effect="once")
        except Uncertain as doubt:
            paid = f"unknown: {doubt.kind}"
        told = await f.op("tell", self.world.do, "tell", effect="once")
        await self.world.gate("end").wait()
        return [paid, told]

    @fiber
    async def pay_verified(self, f: Fiber) -> Any:
        return await f.op("pay", self.world.do_and_wait, "pay", effect="once", verify=self.verify)

    @fiber
    async def pay_over_the_net(self, f: Fiber) -> Any:
        return await f.op("pay", self.lose_the_answer, effect="once")

    @fiber
    async def pay_over_the_net_verified(self, f: Fiber) -> Any:
        return await f.op("pay", self.lose_the_answer, effect="once", verify=self.verify_nothing)

    def lose_the_answer(self) -> None:
        self.world.do("pay")
        raise ConnectionResetError("reset by peer")

    async def verify(self, name: str) -> Any:
        self.world.do("verify")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def verify_nothing(self) -> Any:
        return await self.verify("")


@pytest.fixture(autouse=True)
def _world(world: World) -> None:
    Payer.world = world
    Payer.answer = None


async def cut(lives: Lives, method: Any) -> tuple[Session[Payer], str]:
    """A new life after one that was killed between the intent of `pay` and its result."""
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(method)
    await until(lambda: Payer.world.did["pay"])
    await lives.kill(rt)
    Payer.world.open("pay")
    rt = await lives.begin(Payer)
    return rt.session(Payer, "one"), running.id


async def interrupted(session: Session[Any], running: str) -> str:
    with pytest.raises(Interrupted) as waits:
        await soon(session.wait(running))
    return str(waits.value)


async def test_a_cut_op_is_in_doubt_and_its_fiber_waits(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay)
    assert "may have executed; verify before retrying" in await interrupted(session, running)
    assert world.did == {"pay": 1}
    (doubt,) = await session.doubts()
    assert (doubt.kind, doubt.fiber, doubt.settled_at) == ("pay", running, None)
    assert await session.status() == Status.INTERRUPTED
    assert await session.why() == "1 fiber waits for an answer, 1 op is in doubt"
    assert [event.type for event in await session.events()] == ["op.doubt", "fiber.interrupted"]
    (row,) = await session.fibers()
    assert (row.host, row.attempt, row.stalled) == (None, 1, 1)
    assert decode(row.parked)["op"] == doubt.id


@pytest.mark.parametrize(("happened", "pays", "result"), [(True, 1, "by hand"), (False, 2, "pay")])
async def test_a_doubt_that_is_settled_lets_its_fiber_go_on(
    lives: Lives, world: World, happened: bool, pays: int, result: str
) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    (doubt,) = await session.doubts()
    await session.resolve(doubt.id, happened=happened, result="by hand" if happened else None)
    assert await soon(session.wait(running)) == [result, "mail"]
    assert world.did == {"pay": pays, "mail": 1}
    assert await session.doubts() == []
    resolved = [decode(one.body) for one in await session.events() if one.type == "op.resolved"]
    assert resolved == [{"op": doubt.id, "kind": "pay", "happened": happened}]


@pytest.mark.parametrize(("said", "pays", "result"), [("continue", 1, None), ("retry", 2, "pay")])
async def test_a_fiber_in_doubt_can_be_answered(
    lives: Lives, world: World, said: str, pays: int, result: str | None
) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    await session.answer(running, said)
    assert await soon(session.wait(running)) == [result, "mail"]
    assert world.did == {"pay": pays, "mail": 1}


async def test_a_fiber_in_doubt_can_be_abandoned(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    await session.answer(running, "abandon")
    with pytest.raises(FiberFailed, match="Abandoned: A person gave this fiber up"):
        await soon(session.wait(running))
    assert world.did == {"pay": 1}
    assert [op.kind for op in await session.doubts()] == ["pay"], "a doubt outlives its fiber"


async def test_a_fiber_in_doubt_can_be_cancelled_and_the_doubt_settled_later(
    lives: Lives, world: World
) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    assert await session.cancel(running) is True
    with pytest.raises(FiberCancelled):
        await soon(session.wait(running))
    (doubt,) = await session.doubts()
    await session.resolve(doubt.id, happened=True, result="by hand")
    assert await session.doubts() == []
    assert [op.outcome for op in await session.ops()] == ["done"]
    assert await session.fibers() == []
    assert world.did == {"pay": 1}


async def test_a_doubt_waits_through_restarts_and_uses_no_attempts(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    (before,) = await session.fibers()
    for _ in range(7):
        rt = lives.here
        await lives.kill(rt)
        rt = await lives.begin(Payer)
        session = rt.session(Payer, "one")
        await session.call("alarms")
    (after,) = await session.fibers()
    assert after == before
    (doubt,) = await session.doubts()
    await session.resolve(doubt.id, happened=True, result="by hand")
    assert await soon(session.wait(running)) == ["by hand", "mail"]
    assert world.did == {"pay": 1, "mail": 1}


async def test_settling_at_the_same_time_settles_once(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    (doubt,) = await session.doubts()
    answers = await asyncio.gather(
        *(session.resolve(doubt.id, happened=happened, result="by hand") for happened in (True, False, True)),
        session.answer(running, "retry"),
        return_exceptions=True,
    )
    assert sum(one is None for one in answers) == 1
    assert all(one is None or isinstance(one, NotFound) for one in answers)
    assert await soon(session.wait(running)) == ["by hand", "mail"]
    assert world.did == {"pay": 1, "mail": 1}


async def test_settling_goes_through_when_the_caller_goes_away(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    (doubt,) = await session.doubts()
    settling = asyncio.create_task(session.resolve(doubt.id, happened=True, result="by hand"))
    await asyncio.sleep(0)
    settling.cancel()
    await asyncio.gather(settling, return_exceptions=True)
    assert await soon(session.wait(running)) == ["by hand", "mail"]


async def test_what_is_not_in_doubt_can_not_be_settled(lives: Lives, world: World) -> None:
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(Payer.pay)
    await until(lambda: world.did["pay"])
    (open_op,) = await lives.store.open_ops(session.id)
    for op in (open_op.id, "nothing"):
        with pytest.raises(NotFound, match="in doubt"):
            await session.resolve(op, happened=True)
    with pytest.raises(NotFound, match="waits for an answer"):
        await session.answer(running.id, "retry")
    world.open("pay")
    assert await soon(running) == ["pay", "mail"]


async def test_a_doubt_of_another_session_can_not_be_settled_here(lives: Lives) -> None:
    session, running = await cut(lives, Payer.pay)
    await interrupted(session, running)
    (doubt,) = await session.doubts()
    rt = lives.here
    other = rt.session(Payer, "two")
    with pytest.raises(NotFound):
        await other.resolve(doubt.id, happened=True)
    with pytest.raises(NotFound):
        await other.answer(running, "retry")
    assert len(await session.doubts()) == 1


# --- doubt as a value


async def test_code_that_catches_the_doubt_goes_on(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay_or_ask)
    world.open("end")
    assert await soon(session.wait(running)) == ["unknown: pay", "tell"]
    assert world.did == {"pay": 1, "tell": 1}
    assert [op.kind for op in await session.doubts()] == ["pay"]
    assert [event.type for event in await session.events()] == ["op.doubt"]


async def test_a_doubt_that_was_caught_is_the_same_in_the_next_life(lives: Lives, world: World) -> None:
    session, running = await cut(lives, Payer.pay_or_ask)
    await until(lambda: world.did["tell"])
    await until(lambda: _told(session))
    rt = lives.here
    await lives.kill(rt)
    world.open("end")
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    assert await soon(session.wait(running)) == ["unknown: pay", "tell"]
    assert world.did == {"pay": 1, "tell": 1}
    assert [event.type for event in await session.events()] == ["op.doubt"]


async def _told(session: Session[Any]) -> bool:
    return any(op.kind == "tell" and op.outcome == "done" for op in await session.ops())


@pytest.mark.not_evicted("what is cut by a timeout is cut by an eviction first")
async def test_an_op_that_its_own_code_gave_up_is_in_doubt_when_asked_for_again(
    lives: Lives, world: World
) -> None:
    class Hasty(Agent):
        @fiber
        async def pay(self, f: Fiber) -> list[str]:
            said: list[str] = []
            for _ in range(2):
                paying = asyncio.create_task(
                    f.op("pay", world.do_and_wait, "pay", effect="once", key="invoice 7")
                )
                await settle()
                paying.cancel()
                try:
                    await paying
                except asyncio.CancelledError:
                    said.append("given up")
                except Uncertain:
                    said.append("in doubt")
            return said

    rt = await lives.begin(Hasty)
    assert await soon(rt.session(Hasty, "one").call(Hasty.pay)) == ["given up", "in doubt"]
    assert world.did == {"pay": 1}


# --- verify


async def test_what_verify_found_is_the_result(lives: Lives, world: World) -> None:
    Payer.answer = Happened("receipt 7")
    session, running = await cut(lives, Payer.pay_verified)
    assert await soon(session.wait(running)) == "receipt 7"
    assert world.did == {"pay": 1, "verify": 1}
    assert [op.outcome for op in await session.ops()] == ["done"]


async def test_what_verify_excludes_is_run(lives: Lives, world: World) -> None:
    Payer.answer = DidNotHappen()
    session, running = await cut(lives, Payer.pay_verified)
    assert await soon(session.wait(running)) == "pay"
    assert world.did == {"pay": 2, "verify": 1}


@pytest.mark.parametrize("answer", [None, ValueError("the ledger is closed")], ids=["nothing", "an error"])
async def test_a_verify_that_knows_nothing_leaves_the_doubt(lives: Lives, world: World, answer: Any) -> None:
    Payer.answer = answer
    session, running = await cut(lives, Payer.pay_verified)
    await interrupted(session, running)
    asked = world.did["verify"]
    assert asked >= 1
    Payer.answer = Happened("receipt 7")
    await session.answer(running, "continue")
    assert await soon(session.wait(running)) is None
    assert world.did == {"pay": 1, "verify": asked}


async def test_a_doubt_asks_verify_again_in_the_next_life(lives: Lives, world: World) -> None:
    class Catching(Agent):
        @fiber
        async def pay(self, f: Fiber) -> Any:
            try:
                return await f.op("pay", world.do_and_wait, "pay", effect="once", verify=self.verify)
            except Uncertain:
                await world.gate("wait").wait()

        async def verify(self, name: str) -> Any:
            world.do("verify")
            return Happened("receipt 7") if world.did["verify"] > 1 else None

    rt = await lives.begin(Catching)
    running = await rt.session(Catching, "one").start(Catching.pay)
    await until(lambda: world.did["pay"])
    await lives.kill(rt)
    rt = await lives.begin(Catching)
    await until(lambda: world.did["verify"])
    await settle()
    await lives.kill(rt)
    rt = await lives.begin(Catching)
    assert await soon(rt.session(Catching, "one").wait(running.id)) == "receipt 7"
    assert world.did == {"pay": 1, "verify": 2}


async def test_a_model_that_verify_found_is_revived_like_any_other(lives: Lives, world: World) -> None:
    async def pay(name: str) -> Receipt:
        await world.do_and_wait(name)
        return Receipt(number=1)

    class Modelling(Agent):
        @fiber
        async def pay(self, f: Fiber) -> Any:
            found = await f.op("pay", pay, "pay", effect="once", verify=self.verify)
            return isinstance(found, Receipt) and found.number

        async def verify(self, name: str) -> Any:
            return Happened(Receipt(number=7))

    rt = await lives.begin(Modelling)
    running = await rt.session(Modelling, "one").start(Modelling.pay)
    await until(lambda: world.did["pay"])
    await lives.kill(rt)
    rt = await lives.begin(Modelling)
    assert await soon(rt.session(Modelling, "one").wait(running.id)) == 7


# --- answers that were lost on the way


async def test_an_error_of_the_network_leaves_a_doubt_in_the_same_life(lives: Lives, world: World) -> None:
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(Payer.pay_over_the_net)
    await interrupted(session, running.id)
    assert world.did == {"pay": 1}
    assert [op.kind for op in await session.doubts()] == ["pay"]


async def test_an_error_of_the_network_is_verified_in_the_same_life(lives: Lives, world: World) -> None:
    Payer.answer = Happened("receipt 7")
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(Payer.pay_over_the_net_verified)
    assert await soon(session.wait(running.id)) == "receipt 7"
    assert world.did == {"pay": 1, "verify": 1}


async def test_an_error_of_the_network_that_provably_did_nothing_is_a_failure(
    lives: Lives, world: World
) -> None:
    """It is not tried again and again: the code decides whether it asks once more."""
    Payer.answer = DidNotHappen()
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(Payer.pay_over_the_net_verified)
    with pytest.raises((OpFailed, FiberFailed), match="ConnectionResetError: reset by peer"):
        await soon(running)
    assert world.did == {"pay": 1, "verify": 1}
    assert [op.outcome for op in await session.ops()] == ["failed"]


async def test_which_errors_leave_a_doubt_can_be_chosen(lives: Lives, world: World) -> None:
    class Choosing(Agent):
        @fiber
        async def pay(self, f: Fiber) -> list[str]:
            said: list[str] = []
            for error, unknown in ((OSError("x"), ()), (KeyError("x"), (KeyError,))):
                try:
                    await f.op(
                        "pay", self.fail, error.args[0], type(error).__name__, effect="once", unknown=unknown
                    )
                except (OpFailed, Uncertain) as outcome:
                    said.append(type(outcome).__name__)
            return said

        def fail(self, why: str, name: str) -> None:
            world.do(name)
            raise {"OSError": OSError, "KeyError": KeyError}[name](why)

    rt = await lives.begin(Choosing)
    assert await soon(rt.session(Choosing, "one").call(Choosing.pay)) == ["OpFailed", "Uncertain"]
    assert world.did == {"OSError": 1, "KeyError": 1}


# --- ops of a fiber that ends


async def test_an_op_in_flight_when_its_fiber_is_cancelled_is_in_doubt(lives: Lives, world: World) -> None:
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(Payer.pay)
    await until(lambda: world.did["pay"])
    await session.cancel(running.id)
    with pytest.raises(FiberCancelled):
        await soon(running)
    assert [(op.kind, op.outcome) for op in await session.doubts()] == [("pay", "doubt")]


@pytest.mark.parametrize(
    ("effect", "outcome"), [("read", "cancelled"), ("keyed", "doubt"), ("once", "doubt")]
)
async def test_no_op_outlives_its_fiber_unsettled(
    lives: Lives, world: World, effect: Any, outcome: str
) -> None:
    class Ending(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            await f.op("do", world.do_and_wait, "do", effect=effect, handle="run-1")

    rt = await lives.begin(Ending)
    session = rt.session(Ending, "one")
    running = await session.start(Ending.work)
    await until(lambda: world.did["do"])
    assert [op.outcome for op in await session.ops()] == [None]
    await session.cancel(running.id)
    assert [op.outcome for op in await session.ops()] == [outcome]


@pytest.mark.not_evicted("the moment between intent and effect is held by hand")
async def test_an_op_that_was_never_called_is_cancelled_with_its_fiber(
    lives: Lives, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_before_calls(world, monkeypatch)
    rt = await lives.begin(Payer)
    session = rt.session(Payer, "one")
    running = await session.start(Payer.pay)
    await until(lambda: world.did["may act"])
    await session.cancel(running.id)
    world.open("may act")
    with pytest.raises(FiberCancelled):
        await soon(running)
    assert [op.outcome for op in await session.ops()] == ["cancelled"]
    assert await session.doubts() == []
    assert "pay" not in world.did


@pytest.mark.not_evicted("the call outlives its fiber in this process")
async def test_a_result_that_arrives_late_settles_the_doubt_and_is_an_event(
    lives: Lives, world: World
) -> None:
    class Stubborn(Agent):
        @fiber
        async def pay(self, f: Fiber) -> Any:
            return await f.op("pay", self.call, effect="once")

        async def call(self) -> str:
            world.do("pay")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await world.gate("answer").wait()
            return "receipt 7"

    rt = await lives.begin(Stubborn)
    session = rt.session(Stubborn, "one")
    running = await session.start(Stubborn.pay)
    await until(lambda: world.did["pay"])
    await session.cancel(running.id)
    assert [op.kind for op in await session.doubts()] == ["pay"]
    world.open("answer")

    async def settled() -> bool:
        return not await session.doubts()

    await until(settled)
    (op,) = await session.ops()
    assert (op.outcome, decode(op.result)) == ("done", "receipt 7")
    assert [event.type for event in await session.events()] == ["op.settled"]
    with pytest.raises(FiberCancelled):
        await session.wait(running.id)
    assert await session.status() == Status.IDLE
