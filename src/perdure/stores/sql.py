"""The store port over any SQL connection. A driver adds how to connect and where reads run."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..core.errors import NotFound, OwnedElsewhere
from ..core.facts import (
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
from ..core.identity import session_id
from ..core.writes import Write
from .group import Commit, Connection, Group, Row, Task

R = TypeVar("R")

DUE_PER_SWEEP = 1000
SILENT_FOR = 24 * 3600 * 1000
"""Milliseconds after its expiry until the row of a host that did not retire is forgotten."""


class SqlStore(ABC):
    """Every verb of the port, in terms of `group` (writes) and `_read`."""

    poll_every: float = 1.0
    group: Group

    # --- what a driver adds

    @abstractmethod
    def now(self) -> int: ...

    @abstractmethod
    async def _read(self, query: str, params: Mapping[str, Any]) -> list[Row]: ...

    @abstractmethod
    def renew(self, host: str, label: str, lives: int) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def on_change(self, notify: Callable[[], None]) -> None: ...

    # --- writes

    def commit(self, lease: Lease, *writes: Write) -> asyncio.Future[int]:
        return self.group.submit(Commit(lease, writes))

    def commit_now(self, lease: Lease, *writes: Write) -> int:
        return self.group.run_now(Commit(lease, writes))

    async def take(self, agent: str, key: str, *, host: str, hold: int, lenient: int = 0) -> Taken:
        return await self.group.submit(
            Task(
                lambda connection: _take(connection, agent, key, host, hold, self.now(), lenient),
                session_id(agent, key),
            )
        )

    async def put_input(self, row: InputRow) -> bool:
        return await self.group.submit(Task(lambda connection: _put_input(connection, row), row.session))

    async def suspect(self, host: str, fiber: str | None) -> None:
        params = {"host": host, "fiber": fiber}
        await self.group.submit(Task(lambda connection: connection.run("suspect", params)))

    def retire(self, host: str) -> None:
        self.group.run_now(Task(lambda connection: connection.run("retire", {"host": host})))

    async def prune(self, limit: int = 100) -> int:
        return await self.group.submit(Task(lambda connection: _prune(connection, self.now(), limit)))

    # --- what is due

    async def due(self, host: str, *, lenient: int = 0) -> list[Due]:
        now = self.now()
        params = {"now": now, "alive": now - lenient, "host": host, "limit": DUE_PER_SWEEP}
        found: dict[str, Due] = {}
        for query in ("due_handed_over", "due_orphans", "due_inputs", "due_alarms"):
            for row in await self._read(query, params):
                found.setdefault(row[0], Due(*row))
        return list(found.values())

    async def due_alarms(self, session: str) -> list[AlarmRow]:
        return await self._all(AlarmRow, "due_alarms_of", session=session, now=self.now())

    async def next_due_at(self, after: int = 0) -> int | None:
        return (await self._read("next_due_at", {"after": after}))[0][0]

    async def owner_lives(self, session: str) -> bool:
        return bool(await self._read("owner_lives", {"session": session, "now": self.now()}))

    # --- reads

    async def session(self, session: str) -> SessionRow | None:
        return await self._one(SessionRow, "session", session=session)

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[SessionRow]:
        return await self._all(SessionRow, "sessions", after=after, limit=limit)

    async def fibers(self, session: str) -> list[FiberRow]:
        return await self._all(FiberRow, "fibers", session=session)

    async def fiber(self, fiber: str) -> FiberRow | None:
        return await self._one(FiberRow, "fiber", fiber=fiber)

    async def fiber_by_key(self, session: str, key: str) -> FiberRow | None:
        return await self._one(FiberRow, "fiber_by_key", session=session, key=key)

    async def ended(self, session: str, *, limit: int = 100) -> list[EndedRow]:
        return await self._all(EndedRow, "ended", session=session, limit=limit)

    async def ended_fiber(self, fiber: str) -> EndedRow | None:
        return await self._one(EndedRow, "ended_fiber", fiber=fiber)

    async def ended_by_key(self, session: str, key: str) -> EndedRow | None:
        return await self._one(EndedRow, "ended_by_key", session=session, key=key)

    async def ops_from(self, fiber: str, scope: str, step: int, limit: int) -> list[OpRow]:
        return await self._all(OpRow, "ops_from", fiber=fiber, scope=scope, step=step, limit=limit)

    async def ops(self, session: str, *, limit: int = 100) -> list[OpRow]:
        return await self._all(OpRow, "ops", session=session, limit=limit)

    async def open_ops(self, session: str) -> list[OpRow]:
        return await self._all(OpRow, "open_ops", session=session)

    async def open_op(self, op: str) -> OpRow | None:
        return await self._one(OpRow, "open_op", op=op)

    async def chunks(self, op: OpRow) -> list[bytes]:
        return [row[0] for row in await self._read("chunks", {"op": op.id, "chunks": op.chunks})]

    async def alarms(self, session: str) -> list[AlarmRow]:
        return await self._all(AlarmRow, "alarms", session=session)

    async def inputs(self, session: str) -> list[InputRow]:
        return await self._all(InputRow, "inputs", session=session)

    async def events(self, session: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        return await self._all(EventRow, "events", session=session, after=after, limit=limit)

    async def state(self, session: str) -> tuple[bytes, int] | None:
        found = await self._read("state", {"session": session})
        return (found[0][0], found[0][1]) if found else None

    async def _all(self, row: Callable[..., R], query: str, **params: Any) -> list[R]:
        return [row(*found) for found in await self._read(query, params)]

    async def _one(self, row: Callable[..., R], query: str, **params: Any) -> R | None:
        found = await self._read(query, params)
        return row(*found[0]) if found else None


def _take(
    connection: Connection, agent: str, key: str, host: str, hold: int, now: int, lenient: int
) -> Taken:
    session = session_id(agent, key)
    wanted = {"session": session, "agent": agent, "key": key, "host": host, "hold": hold}
    taken = connection.run("take", {**wanted, "now": now, "alive": now - lenient})
    if not taken:
        owner = connection.run("owner", {"session": session})
        raise OwnedElsewhere(f"({agent} {key!r} is at {owner[0][0] if owner else 'an unknown host'})")
    row = SessionRow(*taken[0])
    of_session = {"session": session}
    state = connection.run("state", of_session) if row.epoch > 1 else []
    fibers = connection.run("fibers", of_session) if row.epoch > 1 else []
    suspects = connection.run("suspects", of_session) if fibers else []
    return Taken(
        lease=Lease(session, host, row.epoch, row.revision),
        session=row,
        fibers=tuple(FiberRow(*found) for found in fibers),
        suspects=dict(suspects),
        state=state[0][0] if state else None,
        state_version=state[0][1] if state else 0,
    )


def _put_input(connection: Connection, row: InputRow) -> bool:
    params = {"id": row.id, "session": row.session, "kind": row.kind, "body": row.body, "at": row.at}
    if connection.run("put_input", params):
        return True
    if not connection.run("session", {"session": row.session}):
        raise NotFound(f"(session {row.session})")
    return False


def _prune(connection: Connection, now: int, limit: int) -> int:
    expired = connection.run("expired", {"now": now, "limit": limit})
    for (fiber,) in expired:
        for query in ("forget_settled_chunks", "forget_settled_ops", "forget_ended"):
            connection.run(query, {"fiber": fiber})
    connection.run("forget_hosts", {"before": now - SILENT_FOR})
    return len(expired)
