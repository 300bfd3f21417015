"""A session in a host's memory: its agent, its lease, its tasks. Evicting it writes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..core.errors import Fenced, StoreUnavailable
from ..core.facts import AlarmRow, OpRow, Taken
from ..core.writes import DropAlarm, ForgetOp, HandOver, OpenOp, PutAlarm, PutState, SettleOp, Write
from .topics import Message
from .turnstile import Turnstile
from .values import decode, encode

if TYPE_CHECKING:
    from .agent import Agent
    from .fibers import Fiber
    from .host import Host

log = logging.getLogger("perdure")

STORE_AWAY = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses (seconds) before something is tried again that the store could not take."""

P = ParamSpec("P")
T = TypeVar("T")


class Live:
    __slots__ = (
        "__weakref__",
        "_keepalives",
        "_unsettled",
        "agent",
        "answering",
        "calls",
        "checked_at",
        "fibers",
        "host",
        "last_commit",
        "launching",
        "lease",
        "lost",
        "pending",
        "row",
        "started",
        "starting",
        "state",
        "state_version",
        "tasks",
        "tending",
        "turnstile",
        "used_at",
    )

    def __init__(self, host: Host, taken: Taken, agent: type[Agent]) -> None:
        self.host = host
        self.lease = taken.lease
        self.row = taken.session
        self.state: bytes | None = taken.state
        self.state_version: int = taken.state_version
        self.turnstile = Turnstile(taken.session.id)
        self.tending = asyncio.Lock()
        self.answering = asyncio.Lock()
        self.fibers: dict[str, Fiber] = {}
        self.pending: dict[str, asyncio.Task[None]] = {}
        self.starting: dict[str, asyncio.Future[tuple[str, bool]]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls = self.launching = 0
        self.lost = self.started = False
        self.last_commit: asyncio.Future[int] | None = None
        self.used_at = self.checked_at = host.clock.monotonic()
        self._keepalives = 0
        self._unsettled: set[str] = set()
        self.agent = agent(self)

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def label(self) -> str:
        return f"{self.row.agent} {self.row.key!r}"

    @property
    def busy(self) -> bool:
        """Whether anything here is a reason not to be evicted."""
        return bool(self.tasks or self.fibers or self.pending or self.calls or self._keepalives)

    def touch(self) -> None:
        self.used_at = self.host.clock.monotonic()

    # --- commits

    def commit(self, *writes: Write) -> asyncio.Future[int]:
        """Queue the writes at once; done when they are on disk."""
        if self.lost:
            raise Fenced
        queued = self.host.store.commit(self.lease, *writes)
        queued.add_done_callback(self._committed)
        self.last_commit = queued
        if self.host.settings.evict_after_commit:
            self._note_unsettled(writes)
        return queued

    def commit_now(self, *writes: Write) -> int:
        """As `commit`, but blocks until the writes are on disk."""
        if self.lost:
            raise Fenced
        try:
            return self.host.store.commit_now(self.lease, *writes)
        except Fenced:
            self.host.replaced(self)
            raise

    async def insist(self, *writes: Write) -> int:
        """Commit as soon as the store can take it, however long that is. At most once."""
        queued: Awaitable[int] = self.commit(*writes)
        pauses = iter(STORE_AWAY)
        while True:
            try:
                return await queued
            except StoreUnavailable as away:
                await self._wait_for_store(away, next(pauses, STORE_AWAY[-1]))
                queued = away.again() if away.again is not None else self.commit(*writes)

    async def patiently(self, read: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what may be done twice as soon as the store can be reached, however long that is."""
        pauses = iter(STORE_AWAY)
        while True:
            try:
                return await read(*args, **kwargs)
            except StoreUnavailable as away:
                await self._wait_for_store(away, next(pauses, STORE_AWAY[-1]))

    async def assure(self) -> None:
        """Our lease may have expired: renew it, and go on only if nobody took the session."""
        await self.patiently(asyncio.to_thread, self.host.tenure.renew)
        if not await self.patiently(self.still_ours):
            self.host.replaced(self)
            raise Fenced

    async def still_ours(self) -> bool:
        row = await self.host.store.session(self.id)
        self.checked_at = self.host.clock.monotonic()
        return row is not None and row.epoch == self.lease.epoch

    async def _wait_for_store(self, away: StoreUnavailable, pause: float) -> None:
        log.warning("session %s waits for the store: %s", self.label, away)
        await self.host.clock.sleep(pause)
        if self.lost:
            raise Fenced

    def _committed(self, queued: asyncio.Future[int]) -> None:
        if queued.cancelled():
            return
        error = queued.exception()
        if isinstance(error, Fenced):
            self.host.replaced(self)
        elif error is None and self.host.settings.evict_after_commit and not self._unsettled:
            self.host.evict_in_mid_work(self)

    def _note_unsettled(self, writes: tuple[Write, ...]) -> None:
        for write in writes:
            match write:
                case OpenOp(op) if op.effect != "read":
                    self._unsettled.add(op.id)
                case SettleOp(op):
                    self._unsettled.discard(op.id)
                case _:
                    pass

    # --- state, broadcast, keepalive

    async def set_state(self, value: Any) -> int:
        encoded = encode(value, "the state")
        before, version = self.state, self.state_version + 1
        self.state, self.state_version = encoded, version
        try:
            await self.commit(PutState(encoded, version))
        except StoreUnavailable:
            if self.state_version == version:
                self.state, self.state_version = before, version - 1
            raise
        self.host.topics.publish(self.id, Message("state", decode(encoded), version))
        return version

    def broadcast(self, body: Any) -> None:
        """Send after the commits before it; it is not stored."""
        message = Message("broadcast", decode(encode(body, "a broadcast")))
        last = self.last_commit
        if last is None or last.done():
            self.host.topics.publish(self.id, message)
        else:
            last.add_done_callback(lambda _: self.host.topics.publish(self.id, message))

    @asynccontextmanager
    async def keep_alive(self) -> AsyncGenerator[None]:
        """Not evicted while held; a heartbeat alarm wakes the session if the host dies."""
        self._keepalives += 1
        try:
            if self._keepalives == 1:
                await self.commit(PutAlarm(self._heartbeat()))
            yield
        finally:
            self._keepalives -= 1
            self.touch()
            if self._keepalives == 0 and not self.lost:
                await asyncio.shield(self.insist(DropAlarm(self._heartbeat().id)))

    async def beat(self) -> None:
        """The heartbeat is due: the next one, or none if nobody holds the session."""
        row = self._heartbeat()
        await self.commit(PutAlarm(row) if self._keepalives else DropAlarm(row.id))

    def _heartbeat(self) -> AlarmRow:
        now = self.host.store.now()
        due_at = now + int(self.host.settings.keepalive * 1000)
        return AlarmRow(f"keepalive:{self.id}", self.id, "keepalive", "", b"[]", b"{}", None, due_at, now)

    # --- tasks

    def called(self, _: asyncio.Task[Any]) -> None:
        """A call from outside has ended."""
        self.calls -= 1
        self.touch()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` for as long as the session is here."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def stop(self) -> list[asyncio.Task[Any]]:
        """Write nothing more, and unwind. Returns the tasks to wait for."""
        self.lost = True
        for fiber in self.fibers.values():
            fiber.stopping = True
        tasks = [one for one in self.tasks if one is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks

    async def hand_over(self, *never_called: OpRow) -> None:
        """Stop, and then give the session up, so that any host may go on with it at once. What
        provably did not start is no doubt there."""
        await asyncio.gather(*self.stop(), return_exceptions=True)
        await self.host.store.commit(self.lease, *map(ForgetOp, never_called), HandOver())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            log.debug("a task of session %s ended with %r", self.label, error)
