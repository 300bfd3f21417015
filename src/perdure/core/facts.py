"""Rows as they stand in the store. A fact is immutable; status is derived from facts (P4).

A row is a tuple in the order of its columns in `stores/queries.sql`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Effect = Literal["read", "keyed", "once"]
"""What running an op twice would do: nothing, nothing if the key is the same, or harm."""

OpOutcome = Literal["done", "failed", "cut", "cancelled", "doubt"]
FiberOutcome = Literal["done", "failed", "cancelled"]
FiberKind = Literal["function", "method", "alarm"]


@dataclass(slots=True, eq=False)
class Lease:
    """The right to write one session: which host holds it, and its fencing number.

    `revision` counts the commits made under it. It belongs to the store: `limbo` holds the
    commits whose outcome the store has not learnt yet.
    """

    session: str
    host: str
    epoch: int
    revision: int
    limbo: list[object] = field(default_factory=list[object])


class SessionRow(NamedTuple):
    id: str
    agent: str
    key: str
    host: str | None
    epoch: int
    revision: int
    seq: int
    created_at: int
    terminated_at: int | None


class FiberRow(NamedTuple):
    """Named work that may be running. `host` is None after a hand-over."""

    id: str
    session: str
    name: str
    kind: FiberKind
    version: int
    args: bytes | None
    key: str | None
    host: str | None
    epoch: int
    steps: bytes | None
    stash: bytes | None
    attempt: int
    stalled: int
    attempted_at: int
    started_at: int
    parked: bytes | None


class EndedRow(NamedTuple):
    """What became of a fiber."""

    id: str
    session: str
    name: str
    key: str | None
    outcome: FiberOutcome
    value: bytes | None
    error: str | None
    started_at: int
    ended_at: int
    expires_at: int


class OpRow(NamedTuple):
    """One call that costs or changes something outside.

    Open: `outcome` is None. In doubt: `outcome` is "doubt" and `settled_at` is None.
    """

    id: str
    session: str
    fiber: str
    scope: str
    step: int
    kind: str
    effect: Effect
    args: bytes
    handle: bytes | None
    cursor: bytes | None
    opened_at: int
    key_until: int | None
    chunks: int
    outcome: OpOutcome | None
    result: bytes | None
    settled_at: int | None


class AlarmRow(NamedTuple):
    """A persisted wake-up time. Internal ones (keepalive) are in no list."""

    id: str
    session: str
    kind: Literal["user", "keepalive"]
    method: str
    args: bytes
    spec: bytes
    key: str | None
    due_at: int
    created_at: int


class EventRow(NamedTuple):
    session: str
    seq: int
    type: str
    body: bytes
    at: int


class InputRow(NamedTuple):
    """An accepted input that the owner has not taken yet."""

    id: str
    session: str
    kind: str
    body: bytes
    at: int


class Due(NamedTuple):
    """A session that wants to be woken."""

    session: str
    agent: str
    key: str


@dataclass(frozen=True, slots=True)
class Taken:
    """What a host finds when it takes a session: everything it needs to wake it."""

    lease: Lease
    session: SessionRow
    fibers: tuple[FiberRow, ...]
    suspects: dict[str, str]
    state: bytes | None
    state_version: int
