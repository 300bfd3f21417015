"""What to do with an op that the code asks for, given what the ledger says of its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .facts import Effect, OpRow


@dataclass(frozen=True, slots=True)
class Run:
    """Call it. `op` is the open row whose key is used again, if there is one."""

    op: OpRow | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    op: OpRow


@dataclass(frozen=True, slots=True)
class Reattach:
    op: OpRow


@dataclass(frozen=True, slots=True)
class Cut:
    op: OpRow


@dataclass(frozen=True, slots=True)
class Doubt:
    op: OpRow


@dataclass(frozen=True, slots=True)
class Divergence:
    """Another irreversible op is recorded here, and is known to be settled."""

    op: OpRow


Verdict: TypeAlias = Run | Replay | Reattach | Cut | Doubt | Divergence


def verdict(op: OpRow | None, *, reattachable: bool, now: int) -> Verdict:
    """The table of an op that is asked for again with the same kind and arguments."""
    if op is None:
        return Run()
    if op.settled_at is not None:
        return Replay(op)
    if op.outcome == "doubt":
        return Doubt(op)
    if op.handle is not None and reattachable:
        return Reattach(op)
    if op.effect == "read":
        return Cut(op) if op.chunks else Run(op)
    if op.effect == "keyed" and key_lives(op, now):
        return Run(op)
    return Doubt(op)


def key_lives(op: OpRow, now: int) -> bool:
    """Whether the other side still remembers the idempotency key of this op."""
    return op.key_until is not None and now < op.key_until


def same(op: OpRow, kind: str, args: bytes, effect: Effect) -> bool:
    return op.kind == kind and op.args == args and op.effect == effect


def other_asked(op: OpRow) -> Verdict:
    """The table of a place where the code now asks for something else than the ledger holds.

    A recorded `read` changed nothing, so whatever is asked now may run and replace it. A
    recorded `once` or `keyed` is never run over: the code that moved it would run it twice.
    """
    if op.effect == "read":
        return Run()
    return Divergence(op) if op.settled_at is not None else Doubt(op)
