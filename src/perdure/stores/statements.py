"""What each write means in SQL: a pure function from a write to named queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

from ..core.facts import OpRow
from ..core.writes import (
    AddChunk,
    Append,
    CloseFiber,
    DropAlarm,
    EnterFiber,
    ForgetOp,
    HandOver,
    HoldHandle,
    OpenFiber,
    OpenOp,
    ParkFiber,
    Progress,
    PutAlarm,
    PutState,
    RecordOp,
    SettleOp,
    Stash,
    TakeInput,
    UnparkFiber,
    Write,
)

Params = Mapping[str, Any] | tuple[Any, ...]
"""The parameters of a named query: by name, or a row whose fields stand in the query's order."""

Statement = tuple[str, Params]


def place(op: OpRow) -> dict[str, Any]:
    return {"fiber": op.fiber, "scope": op.scope, "step": op.step}


def statements(session: str, write: Write) -> Iterator[Statement]:
    """The statements of one write. Events are numbered by the commit, so `Append` is not here."""
    match write:
        case RecordOp(op) | OpenOp(op):
            yield "put_op", op
        case SettleOp(op, outcome, result, settled_at):
            yield "settle_op", {**place(op), "outcome": outcome, "result": result, "settled_at": settled_at}
        case Stash(fiber, data, steps):
            yield "stash", {"fiber": fiber, "data": data, "steps": steps}
        case OpenFiber(fiber):
            yield "open_fiber", fiber
        case CloseFiber(ended, may_have_open_ops):
            yield "close_fiber", {"fiber": ended.id}
            yield "keep_ended", ended
            if may_have_open_ops:
                yield "settle_open_ops", {"fiber": ended.id, "now": ended.ended_at}
        case EnterFiber(fiber):
            yield "enter_fiber", fiber._asdict()
        case Progress(fiber):
            yield "progress", {"fiber": fiber}
        case ParkFiber(fiber, question):
            yield "park_fiber", {"fiber": fiber, "question": question}
        case UnparkFiber(fiber):
            yield "unpark_fiber", {"fiber": fiber}
        case HoldHandle(op, handle, cursor):
            yield "hold_handle", {**place(op), "handle": handle, "cursor": cursor}
        case AddChunk(op, n, data):
            yield "count_chunk", {**place(op), "n": n}
            yield "add_chunk", {"op": op.id, "n": n, "data": data}
        case ForgetOp(op):
            yield "forget_op", place(op)
            yield "forget_chunks", {"op": op.id}
        case PutAlarm(alarm):
            yield "put_alarm", alarm
        case DropAlarm(alarm):
            yield "drop_alarm", {"id": alarm, "session": session}
        case PutState(value, version):
            yield "put_state", {"session": session, "value": value, "version": version}
        case TakeInput(taken):
            yield "take_input", {"id": taken}
        case HandOver():
            yield "hand_over_session", {"session": session}
            yield "hand_over_fibers", {"session": session}
        case Append():
            return
        case _:
            assert_never(write)
