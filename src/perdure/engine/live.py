"""A session in a host's memory: its agent, its lease, its fibers. Evicting it writes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.errors import Abandoned, Diverged, Fenced, FiberCancelled, NotFound, StoreUnavailable, Uncertain
from ..core.facts import AlarmRow, EndedRow, FiberKind, FiberOutcome, FiberRow, OpRow, Taken
from ..core.writes import (
    Append,
    CloseFiber,
    DropAlarm,
    EnterFiber,
    ForgetOp,
    HandOver,
    OpenFiber,
    OpenOp,
    ParkFiber,
    PutAlarm,
    PutState,
    SettleOp,
    UnparkFiber,
    Write,
)
from .fibers import Fiber, Running
from .topics import Message
from .turnstile import Turnstile, leave_all_turns
from .values import decode, encode

if TYPE_CHECKING:
    from .agent import Agent
    from .host import Host

log = logging.getLogger("perdure")

STORE_AWAY = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses (seconds) before a fiber tries a commit again that the store could not take."""

Body = Callable[[Fiber], Awaitable[Any]]


class Live:
    __slots__ = (
        "__weakref__",
        "_keepalives",
        "_starting",
        "_unsettled",
        "agent",
        "calls",
        "checked_at",
        "fibers",
        "host",
        "last_commit",
        "lease",
        "lost",
        "pending",
        "row",
        "started",
        "state",
        "state_version",
        "tasks",
        "turnstile",
        "used_at",
    )

    def __init__(self, host: Host, taken: Taken, agent: type[Agent]) -> None:
        self.host = host
        self.lease = taken.lease
        self.row = taken.session
        self.state = taken.state
        self.state_version = taken.state_version
        self.turnstile = Turnstile(taken.session.id)
        self.fibers: dict[str, Fiber] = {}
        self.pending: set[str] = set()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls = 0
        self.lost = False
        self.started = False
        self.last_commit: asyncio.Future[int] | None = None
        self.used_at = self.checked_at = host.clock.monotonic()
        self._keepalives = 0
        self._starting: dict[str, asyncio.Future[tuple[str, bool]]] = {}
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
        return bool(self.fibers or self.pending or self.calls or self._keepalives or self.turnstile.taken)

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
        """Commit as soon as the store can take it, however long that is."""
        queued: Awaitable[int] = self.commit(*writes)
        pauses = iter(STORE_AWAY)
        while True:
            try:
                return await queued
            except StoreUnavailable as away:
                log.warning("session %s waits for the store: %s", self.label, away)
                await self.host.clock.sleep(next(pauses, STORE_AWAY[-1]))
                if self.lost:
                    raise Fenced from None
                assert away.again is not None
                queued = away.again()

    async def assure(self) -> None:
        """Our lease may have expired: renew it, and go on only if nobody took the session."""
        await asyncio.to_thread(self.host.tenure.renew)
        if not await self.still_ours():
            self.host.replaced(self)
            raise Fenced

    async def still_ours(self) -> bool:
        row = await self.host.store.session(self.id)
        self.checked_at = self.host.clock.monotonic()
        return row is not None and row.epoch == self.lease.epoch

    def _committed(self, queued: asyncio.Future[int]) -> None:
        if queued.cancelled():
            return
        error = queued.exception()
        if isinstance(error, Fenced):
            self.host.replaced(self)
        elif error is None and self.host.settings.evict_after_commit and not self._unsettled:
            self.host.evict_if_possible(self)

    def _note_unsettled(self, writes: tuple[Write, ...]) -> None:
        for write in writes:
            match write:
                case OpenOp(op) if op.effect != "read":
                    self._unsettled.add(op.id)
                case SettleOp(op):
                    self._unsettled.discard(op.id)
                case _:
                    pass

    # --- fibers

    def start(
        self,
        name: str,
        body: Body,
        *,
        kind: FiberKind = "function",
        version: int = 1,
        args: bytes | None = None,
        key: str | None = None,
        shape: type[Any] | None = None,
        with_it: tuple[Write, ...] = (),
    ) -> Running[Any]:
        """Start a fiber. Its row is on disk before its body runs; `with_it` is in that commit."""
        now = self.host.store.now()
        row = FiberRow(
            id=self.host.new_id("f"),
            session=self.id,
            name=name,
            kind=kind,
            version=version,
            args=args,
            key=key,
            host=self.lease.host,
            epoch=self.lease.epoch,
            steps=None,
            stash=None,
            attempt=0,
            stalled=0,
            attempted_at=now,
            started_at=now,
            parked=None,
        )
        if self.lost:
            raise Fenced
        opened: asyncio.Future[tuple[str, bool]] = asyncio.get_running_loop().create_future()
        opened.add_done_callback(_seen)
        self.spawn(self._launch(row, body, opened, with_it))
        return Running(self, opened, shape)

    async def _launch(
        self, row: FiberRow, body: Body, opened: asyncio.Future[tuple[str, bool]], with_it: tuple[Write, ...]
    ) -> None:
        try:
            joined = await self._find(row.key, opened) if row.key is not None else None
            if joined is not None:
                opened.set_result((joined, False))
                return
            fiber = self._adopt(Fiber(self, row, entered_again=False))
            try:
                await self.commit(OpenFiber(row), *with_it)
            except BaseException:
                self._drop(fiber)
                raise
        except BaseException as error:
            if not opened.done():
                opened.set_exception(_as_exception(error))
            if isinstance(error, Exception | Fenced):
                return
            raise
        finally:
            if row.key is not None and self._starting.get(row.key) is opened:
                del self._starting[row.key]
        opened.set_result((row.id, True))
        await self._run(fiber, body)

    async def _find(self, key: str, opened: asyncio.Future[tuple[str, bool]]) -> str | None:
        """The fiber that has this key already: being started, open, or ended."""
        if (starting := self._starting.get(key)) is not None:
            return (await asyncio.shield(starting))[0]
        self._starting[key] = opened
        store = self.host.store
        found = await store.fiber_by_key(self.id, key) or await store.ended_by_key(self.id, key)
        return found.id if found is not None else None

    def enter(self, row: FiberRow, body: Body) -> Fiber:
        """Run a fiber again whose attempt is committed."""
        fiber = self._adopt(Fiber(self, row, entered_again=True))
        self.spawn(self._run(fiber, body))
        return fiber

    def take_over(self, row: FiberRow, name: str, body: Body, shape: type[Any] | None) -> Running[Any]:
        """Go on with a cut fiber's row under a new body; its first commit says so."""
        opened: asyncio.Future[tuple[str, bool]] = asyncio.get_running_loop().create_future()
        opened.add_done_callback(_seen)
        self.spawn(self._launch_again(replace(row, name=name), body, opened))
        return Running(self, opened, shape)

    async def _launch_again(
        self, row: FiberRow, body: Body, opened: asyncio.Future[tuple[str, bool]]
    ) -> None:
        fiber = self._adopt(Fiber(self, row, entered_again=True))
        try:
            await self.insist(EnterFiber(row))
        except BaseException as error:
            self._drop(fiber)
            opened.set_exception(_as_exception(error))
            if isinstance(error, Exception | Fenced):
                return
            raise
        opened.set_result((row.id, True))
        await self._run(fiber, body)

    async def _run(self, fiber: Fiber, body: Body) -> None:
        """The fiber's body, and the commit that ends it."""
        fiber.task = asyncio.current_task()
        fiber.enter()
        leave_all_turns()
        cause: Exception | None = None
        try:
            try:
                value = encode(await body(fiber), f"the result of fiber {fiber.name}")
                ended = self.ended(fiber.row, "done", value)
            except asyncio.CancelledError:
                if fiber.stopping or fiber.closed or self.lost:
                    return
                ended = self.ended(fiber.row, "cancelled")
            except (Uncertain, Diverged) as question:
                await self._park(fiber, question)
                return
            except Exception as error:
                cause = error
                ended = self.ended(fiber.row, "failed", error=f"{type(error).__name__}: {error}")
                log.warning("fiber %s failed: %s", fiber.label, ended.error, exc_info=error)
            await self.insist(CloseFiber(ended, fiber.wrote_ops))
            self._finish(fiber, ended, cause)
        except Fenced:
            return
        finally:
            self._drop(fiber)

    def ended(
        self, row: FiberRow, outcome: FiberOutcome, value: bytes | None = None, *, error: str | None = None
    ) -> EndedRow:
        now = self.host.store.now()
        settings = self.host.settings
        keep = settings.keep_failures if outcome == "failed" else settings.keep_results
        return EndedRow(
            row.id,
            self.id,
            row.name,
            row.key,
            outcome,
            value,
            error,
            row.started_at,
            now,
            now + int(keep * 1000),
        )

    async def _park(self, fiber: Fiber, question: Uncertain | Diverged) -> None:
        """The fiber waits for an answer; this uses no attempts."""
        body: dict[str, Any] = {
            "why": type(question).__name__,
            "op": question.op_id,
            "message": str(question),
        }
        if isinstance(question, Diverged):
            body["scope"], body["step"] = question.place
        await self.park(fiber.row, body)

    async def park(self, row: FiberRow, question: dict[str, Any]) -> None:
        event = encode({"fiber": row.id, "name": row.name, **question}, "an event")
        await self.insist(
            ParkFiber(row.id, encode(question, "a question")),
            Append("fiber.interrupted", event, self.host.store.now()),
        )
        log.warning("fiber %s (%s) waits for an answer: %s", row.name, row.id, question["message"])
        self.host.parked(row.id, question)

    async def close(
        self, row: FiberRow, ended: EndedRow, *more: Write, cause: Exception | None = None
    ) -> None:
        """End a fiber from outside its body: the row leaves first, then its task."""
        fiber = self.fibers.get(row.id)
        never_called = [] if fiber is None else [one for one in fiber.in_flight if not one.called]
        cancelled = [SettleOp(one.row, "cancelled", None, ended.ended_at) for one in never_called]
        if fiber is not None:
            fiber.closed = True
        await self.insist(*cancelled, CloseFiber(ended), *more)
        self.host.finished(ended, cause)
        if fiber is not None and fiber.task is not None:
            fiber.task.cancel()

    async def cancel(self, fiber: str) -> bool:
        """Cancelled stays cancelled. False if the fiber had ended already."""
        row = await self.host.store.fiber(fiber)
        if row is None or row.session != self.id:
            if await self.host.store.ended_fiber(fiber) is None:
                raise NotFound(f"(fiber {fiber})")
            return False
        await self.close(row, self.ended(row, "cancelled", error=FiberCancelled.__doc__))
        return True

    def _adopt(self, fiber: Fiber) -> Fiber:
        self.fibers[fiber.id] = fiber
        self.host.expect(fiber.id)
        return fiber

    def _drop(self, fiber: Fiber) -> None:
        fiber.closed = True
        fiber.proved.set()
        if self.fibers.get(fiber.id) is fiber:
            del self.fibers[fiber.id]
        self.touch()

    def _finish(self, fiber: Fiber, ended: EndedRow, cause: Exception | None) -> None:
        fiber.closed = True
        self.host.finished(ended, cause)

    # --- answers of people

    async def resolve(
        self, op: OpRow, *, happened: bool, result: Any, with_it: tuple[Write, ...] = ()
    ) -> None:
        """Settle a doubt. A fiber that waits for it goes on."""
        now = self.host.store.now()
        data = encode(result, "the result of an op") if happened else None
        settle = SettleOp(op, "done", data, now) if happened else ForgetOp(op)
        said = encode({"op": op.id, "kind": op.kind, "happened": happened}, "an event")
        row = await self.host.store.fiber(op.fiber)
        unpark = (UnparkFiber(row.id),) if row is not None and _waits_for(row, op) else ()
        await self.insist(settle, Append("op.resolved", said, now), *unpark, *with_it)
        if row is not None and unpark:
            self.host.recover(self, replace(row, parked=None, host=None))

    async def answer(self, row: FiberRow, answer: str, with_it: tuple[Write, ...] = ()) -> None:
        """Answer a fiber that waits: retry, continue or abandon."""
        question = decode(row.parked)
        op = await self.host.store.open_op(question["op"]) if question.get("op") else None
        if answer == "abandon":
            failed = self.ended(
                row, "failed", error=f"Abandoned: {Abandoned.__doc__} ({question['message']})"
            )
            await self.close(row, failed, *with_it)
        elif op is not None:
            await self.resolve(op, happened=answer == "continue", result=None, with_it=with_it)
        else:
            replaced = await self._replaced(row, question) if answer == "continue" else ()
            await self.insist(UnparkFiber(row.id), *replaced, *with_it)
            self.host.recover(self, replace(row, parked=None, host=None))

    async def _replaced(self, row: FiberRow, question: dict[str, Any]) -> tuple[Write, ...]:
        """The recorded op that makes room for what the code asks now; the log remembers it."""
        if "step" not in question:
            return ()
        found = await self.host.store.ops_from(row.id, question["scope"], question["step"], 1)
        if not found or found[0].step != question["step"]:
            return ()
        op = found[0]
        said = {"op": op.id, "kind": op.kind, "args": decode(op.args), "outcome": op.outcome, "fiber": row.id}
        return ForgetOp(op), Append("op.replaced", encode(said, "an event"), self.host.store.now())

    # --- state, keepalive, tasks

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

    def touch(self) -> None:
        self.used_at = self.host.clock.monotonic()

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
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

    async def hand_over(self) -> None:
        """Stop, and then give the session up, so that any host may go on with it at once."""
        await asyncio.gather(*self.stop(), return_exceptions=True)
        await self.host.store.commit(self.lease, HandOver())


def _seen(future: asyncio.Future[Any]) -> None:
    """A start that nobody asks about must not complain when it fails."""
    if not future.cancelled():
        future.exception()


def _as_exception(error: BaseException) -> BaseException:
    return error if isinstance(error, Exception | Fenced) else asyncio.CancelledError()


def _waits_for(row: FiberRow, op: OpRow) -> bool:
    return row.parked is not None and decode(row.parked).get("op") == op.id
