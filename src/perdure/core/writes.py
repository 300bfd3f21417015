"""The closed union of writes. A commit is a list of these values, applied whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .facts import AlarmRow, EndedRow, FiberRow, OpOutcome, OpRow


@dataclass(frozen=True, slots=True)
class OpenFiber:
    fiber: FiberRow


@dataclass(frozen=True, slots=True)
class EnterFiber:
    """The fiber's row now says who works on it, and how often it was tried."""

    fiber: FiberRow


@dataclass(frozen=True, slots=True)
class Stash:
    """Replace the checkpoint and the step counters that belong to it."""

    fiber: str
    data: bytes
    steps: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """The fiber got somewhere: attempts without progress count from zero again."""

    fiber: str


@dataclass(frozen=True, slots=True)
class ParkFiber:
    """The fiber waits for an answer; nobody runs it and nobody sweeps it."""

    fiber: str
    question: bytes


@dataclass(frozen=True, slots=True)
class UnparkFiber:
    fiber: str


@dataclass(frozen=True, slots=True)
class CloseFiber:
    """The row leaves and its outcome stays. Ops still open are settled in the same commit:
    a `read` is cancelled, anything else is in doubt."""

    ended: EndedRow
    may_have_open_ops: bool = True


@dataclass(frozen=True, slots=True)
class OpenOp:
    """Intent before effect (P5). Replaces what stood at the same place."""

    op: OpRow


@dataclass(frozen=True, slots=True)
class RecordOp:
    """An op that needed no intent, with its result. Replaces what stood at the same place."""

    op: OpRow


@dataclass(frozen=True, slots=True)
class HoldHandle:
    op: OpRow
    handle: bytes | None
    cursor: bytes | None


@dataclass(frozen=True, slots=True)
class AddChunk:
    op: OpRow
    n: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SettleOp:
    """Settled once (P6). `settled_at` None leaves it in doubt (P7)."""

    op: OpRow
    outcome: OpOutcome
    result: bytes | None
    settled_at: int | None


@dataclass(frozen=True, slots=True)
class ForgetOp:
    """The op is known never to have happened: its place is free again."""

    op: OpRow


@dataclass(frozen=True, slots=True)
class PutAlarm:
    alarm: AlarmRow


@dataclass(frozen=True, slots=True)
class DropAlarm:
    id: str


@dataclass(frozen=True, slots=True)
class PutState:
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Append:
    """One event at the end of the log; the commit gives it the next `seq`."""

    type: str
    body: bytes
    at: int


@dataclass(frozen=True, slots=True)
class TakeInput:
    """The input leaves the inbox in the commit that acts on it."""

    id: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The session and its fibers belong to nobody: any host may take them at once."""


Write: TypeAlias = (
    OpenFiber
    | EnterFiber
    | Stash
    | Progress
    | ParkFiber
    | UnparkFiber
    | CloseFiber
    | OpenOp
    | RecordOp
    | HoldHandle
    | AddChunk
    | SettleOp
    | ForgetOp
    | PutAlarm
    | DropAlarm
    | PutState
    | Append
    | TakeInput
    | HandOver
)
