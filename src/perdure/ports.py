"""What the engine needs from the world, as Protocols. Adapters stand behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from .core.facts import (
    AlarmRow,
    Due,
    EndedRow,
    EventRow,
    FiberRow,
    InputRow,
    Lease,
    OpRow,
    SessionRow,
    Taken,
)
from .core.writes import Write


class Clock(Protocol):
    """Time is passed in: nothing in `core` or `engine` asks the machine for it."""

    def now(self) -> int:
        """Milliseconds since 1970, UTC, never running backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that nobody sets."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Ledger(Protocol):
    """Reading what a session has done. Rows come in the order of their place or time."""

    async def session(self, session: str) -> SessionRow | None: ...

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[SessionRow]: ...

    async def fibers(self, session: str) -> list[FiberRow]: ...

    async def fiber(self, fiber: str) -> FiberRow | None: ...

    async def fiber_by_key(self, session: str, key: str) -> FiberRow | None: ...

    async def ended(self, session: str, *, limit: int = 100) -> list[EndedRow]:
        """The fibers that ended last, newest first."""
        ...

    async def ended_fiber(self, fiber: str) -> EndedRow | None: ...

    async def ended_by_key(self, session: str, key: str) -> EndedRow | None: ...

    async def ops_from(self, fiber: str, scope: str, step: int, limit: int) -> list[OpRow]:
        """The ops of one scope from `step` on."""
        ...

    async def ops(self, session: str, *, limit: int = 100) -> list[OpRow]:
        """The ops recorded last, newest first."""
        ...

    async def open_ops(self, session: str) -> list[OpRow]:
        """The ops that are not settled: open, or in doubt."""
        ...

    async def open_op(self, op: str) -> OpRow | None: ...

    async def chunks(self, op: OpRow) -> list[bytes]: ...

    async def alarms(self, session: str) -> list[AlarmRow]: ...

    async def inputs(self, session: str) -> list[InputRow]: ...

    async def events(self, session: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]: ...

    async def state(self, session: str) -> tuple[bytes, int] | None: ...


class Store(Ledger, Protocol):
    """Where sessions live. Everything durable goes through `commit`."""

    poll_every: float
    """Seconds within which a host should look for what other processes have put in."""

    def now(self) -> int:
        """The store's clock: every persisted time and every due decision uses it."""
        ...

    def commit(self, lease: Lease, *writes: Write) -> asyncio.Future[int]:
        """Queue the writes at once. Once awaited they are on disk, all of them, and the
        session's last `seq` is returned. `Fenced` if the lease is not the newest."""
        ...

    def commit_now(self, lease: Lease, *writes: Write) -> int:
        """As `commit`, but blocks until the writes are on disk."""
        ...

    async def take(self, agent: str, key: str, *, host: str, hold: int, lenient: int = 0) -> Taken:
        """Make `host` the owner of the session, under a new epoch, creating it if need be.

        `OwnedElsewhere` if another live host has work in it, or took it less than `hold` ms ago.
        A host lives until `lenient` ms after its lease has expired.
        """
        ...

    async def put_input(self, row: InputRow) -> bool:
        """Accept an input, without a lease. False if its id was accepted before."""
        ...

    def renew(self, host: str, label: str, lives: int) -> None:
        """Extend the host's lease to `lives` ms from now. Blocks; called from its own thread."""
        ...

    def retire(self, host: str) -> None:
        """End the host's lease now."""
        ...

    async def suspect(self, host: str, fiber: str | None) -> None:
        """Note the one fiber that `host` tries out alone: if it dies now, that one is blamed."""
        ...

    async def due(self, host: str, *, lenient: int = 0) -> list[Due]:
        """Sessions that want waking and that no other live host owns: due alarms, fibers whose
        owner is dead or gave them up, waiting inputs."""
        ...

    async def due_alarms(self, session: str) -> list[AlarmRow]: ...

    async def next_due_at(self, after: int = 0) -> int | None:
        """When the first alarm is due that is due after `after`."""
        ...

    async def owner_lives(self, session: str) -> bool: ...

    async def prune(self, limit: int = 100) -> int:
        """Remove ended fibers past their retention, with their settled ops."""
        ...

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call `notify`, from any thread, when another process has put something in."""
        ...

    async def close(self) -> None: ...
