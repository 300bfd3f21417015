"""What a check of the store exam works with: a fresh store, a manual clock, and rows to write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from ..core.facts import AlarmRow, EndedRow, FiberRow, InputRow, Lease, OpRow, Taken
from ..core.identity import Place, op_id, session_id
from ..core.writes import Append, CloseFiber, OpenFiber, OpenOp
from ..ports import Store
from .clock import ManualClock

T = TypeVar("T")

LIVES = 15_000
HOLD = 1_000
AGENT = "Examinee"


Check: TypeAlias = "Callable[[Desk], Awaitable[None]]"
"""Its name is the sentence that must hold."""

STORE_CHECKS: list[Check] = []
"""Everything a store must do."""


def check(function: Check) -> Check:
    """Add it to the exam."""
    STORE_CHECKS.append(function)
    return function


class Failure(AssertionError):
    """The store does not do what a store must do."""


def same(found: object, wanted: object, what: str = "") -> None:
    """Fail unless the two are equal."""
    if found != wanted:
        raise Failure(f"{what + ': ' if what else ''}expected {_short(wanted)}, found {_short(found)}")


async def raises(kind: type[BaseException], work: Awaitable[object]) -> BaseException:
    """The error of `kind` that `work` must raise."""
    try:
        value = await work
    except kind as error:
        return error
    raise Failure(f"expected {kind.__name__}, but it returned {_short(value)}")


def raises_now(kind: type[BaseException], store: Store, lease: Lease, *writes: Any) -> BaseException:
    """The error of `kind` that `commit_now` must raise."""
    try:
        value = store.commit_now(lease, *writes)
    except kind as error:
        return error
    raise Failure(f"expected {kind.__name__}, but it returned {_short(value)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:390]}… ({len(text)} characters)"


class Desk:
    """One store, and the shortest words for what the checks do with it."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock

    @property
    def now(self) -> int:
        return self.clock.now()

    async def host(self, name: str, *, lives: int = LIVES) -> str:
        """A host that lives for `lives` ms from now."""
        await asyncio.to_thread(self.store.renew, name, f"{name} of the exam", lives)
        return name

    async def retire(self, name: str) -> None:
        await asyncio.to_thread(self.store.retire, name)

    async def take(self, host: str = "a", key: str = "k", *, hold: int = HOLD) -> Taken:
        return await self.store.take(AGENT, key, host=host, hold=hold)

    async def lease(self, host: str = "a", key: str = "k") -> Lease:
        """The lease of a live host on a session."""
        await self.host(host)
        return (await self.take(host, key)).lease

    async def due(self, host: str) -> list[str]:
        """The keys of the sessions that this host should wake."""
        found = await self.store.due(host)
        same(len({one.session for one in found}), len(found), "each session is named once")
        for one in found:
            same(one.session, session_id(one.agent, one.key))
        return sorted(one.key for one in found)

    async def log(self, session: str) -> list[str]:
        """The types of the session's events; their numbers are contiguous from 1."""
        rows = await self.store.events(session, limit=100_000)
        same([row.seq for row in rows], list(range(1, len(rows) + 1)), "the numbers of the events")
        return [row.type for row in rows]

    # --- rows and writes

    def event(self, type: str = "said", body: bytes = b"{}") -> Append:
        return Append(type, body, self.now)

    def fiber(self, lease: Lease, id: str = "f", **changes: Any) -> FiberRow:
        row = FiberRow(
            id=id,
            session=lease.session,
            name="work",
            kind="function",
            version=1,
            args=None,
            key=None,
            host=lease.host,
            epoch=lease.epoch,
            steps=None,
            stash=None,
            attempt=0,
            stalled=0,
            attempted_at=self.now,
            started_at=self.now,
            parked=None,
        )
        return row._replace(**changes)

    def ended(self, fiber: FiberRow, **changes: Any) -> EndedRow:
        row = EndedRow(
            id=fiber.id,
            session=fiber.session,
            name=fiber.name,
            key=fiber.key,
            outcome="done",
            value=b"null",
            error=None,
            started_at=fiber.started_at,
            ended_at=self.now,
            expires_at=self.now + 60_000,
        )
        return row._replace(**changes)

    def op(self, fiber: FiberRow, step: int = 0, scope: str = "", **changes: Any) -> OpRow:
        row = OpRow(
            id=op_id(Place(fiber.id, scope, step)),
            session=fiber.session,
            fiber=fiber.id,
            scope=scope,
            step=step,
            kind="pay",
            effect="once",
            args=b"[1]",
            handle=None,
            cursor=None,
            opened_at=self.now,
            key_until=None,
            chunks=0,
            outcome=None,
            result=None,
            settled_at=None,
        )
        return row._replace(**changes)

    def alarm(self, lease: Lease, id: str = "alarm", *, due_in: int = 1_000, **changes: Any) -> AlarmRow:
        row = AlarmRow(
            id=id,
            session=lease.session,
            kind="user",
            method="ring",
            args=b"[]",
            spec=b"{}",
            key=None,
            due_at=self.now + due_in,
            created_at=self.now,
        )
        return row._replace(**changes)

    def input(self, session: str, id: str = "i", body: bytes = b"{}") -> InputRow:
        return InputRow(id, session, "message", body, self.now)

    # --- common beginnings

    async def open_fiber(self, lease: Lease, id: str = "f", **changes: Any) -> FiberRow:
        row = self.fiber(lease, id, **changes)
        await self.store.commit(lease, OpenFiber(row))
        return row

    async def open_op(self, lease: Lease, fiber: FiberRow, step: int = 0, **changes: Any) -> OpRow:
        row = self.op(fiber, step, **changes)
        await self.store.commit(lease, OpenOp(row))
        return row

    async def close_fiber(self, lease: Lease, fiber: FiberRow, **changes: Any) -> EndedRow:
        row = self.ended(fiber, **changes)
        await self.store.commit(lease, CloseFiber(row))
        return row

    async def the_op(self, op: OpRow) -> OpRow | None:
        """What the ledger holds at the place of `op`."""
        found = await self.store.ops_from(op.fiber, op.scope, op.step, 1)
        return found[0] if found and found[0].step == op.step else None
