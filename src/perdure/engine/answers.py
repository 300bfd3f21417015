"""What people decide: settle a doubt, or answer a fiber that waits."""

from __future__ import annotations

from typing import Any

from ..core.errors import Abandoned, BadInput, NotFound
from ..core.facts import FiberRow, OpRow
from ..core.writes import Append, ForgetOp, SettleOp, UnparkFiber, Write
from . import lifecycle
from .live import Live
from .values import decode, encode

ANSWERS = ("retry", "continue", "abandon")


def check_answer(said: str) -> None:
    if said not in ANSWERS:
        raise BadInput(f"(an answer is one of {', '.join(ANSWERS)}, not {said!r})")


async def resolve(
    live: Live, op: str, *, happened: bool, result: Any, with_it: tuple[Write, ...] = ()
) -> None:
    """Settle a doubt: it happened, with this result, or it did not, and its place is free again.
    A fiber that waits for it goes on. `NotFound` if the op is not in doubt (any more)."""
    if happened not in (True, False):
        raise BadInput(f"(it happened or it did not, not {happened!r})")
    async with live.answering:
        found = await live.host.store.open_op(op)
        if found is None or found.session != live.id or found.outcome != "doubt":
            raise NotFound(f"(no op {op} is in doubt in this session)")
        await _settle(live, found, happened, result, with_it)


async def answer(live: Live, fiber: str, said: str, with_it: tuple[Write, ...] = ()) -> None:
    """Answer a fiber that waits. `NotFound` if it does not wait (any more).

    `retry` runs again what is in doubt or was changed; `continue` takes it as happened, or lets
    the code's new op stand in place of the recorded one; `abandon` ends the fiber.
    """
    check_answer(said)
    async with live.answering:
        row = await live.host.store.fiber(fiber)
        if row is None or row.session != live.id or row.parked is None:
            raise NotFound(f"(no fiber {fiber} waits for an answer in this session)")
        question = decode(row.parked)
        op = await live.host.store.open_op(question["op"]) if question.get("op") else None
        if said == "abandon":
            why = f"{Abandoned.__name__}: {Abandoned.__doc__} ({question['message']})"
            await lifecycle.close(live, row, lifecycle.ended(live, row, "failed", error=why), *with_it)
        elif op is not None:
            await _settle(live, op, said == "continue", None, with_it)
        else:
            replaced = await _replaced(live, row, question) if said == "continue" else ()
            await live.insist(UnparkFiber(row.id), *replaced, *with_it)
            _go_on(live, row)


async def _settle(live: Live, op: OpRow, happened: bool, result: Any, with_it: tuple[Write, ...]) -> None:
    now = live.host.store.now()
    settled = SettleOp(op, "done", encode(result, "the result of an op"), now) if happened else ForgetOp(op)
    said = encode({"op": op.id, "kind": op.kind, "happened": happened}, "an event")
    row = await live.host.store.fiber(op.fiber)
    waits = row is not None and row.parked is not None and decode(row.parked).get("op") == op.id
    unpark = (UnparkFiber(op.fiber),) if waits else ()
    await live.insist(settled, Append("op.resolved", said, now), *unpark, *with_it)
    if row is not None and waits:
        _go_on(live, row)


async def _replaced(live: Live, row: FiberRow, question: dict[str, Any]) -> tuple[Write, ...]:
    """The recorded op that makes room for what the code asks now; the log remembers it."""
    if "step" not in question:
        return ()
    found = await live.host.store.ops_from(row.id, question["scope"], question["step"], 1)
    if not found or found[0].step != question["step"]:
        return ()
    op = found[0]
    said = {"op": op.id, "kind": op.kind, "args": decode(op.args), "outcome": op.outcome, "fiber": row.id}
    return ForgetOp(op), Append("op.replaced", encode(said, "an event"), live.host.store.now())


def _go_on(live: Live, row: FiberRow) -> None:
    live.host.recover(live, row._replace(parked=None, host=None))
