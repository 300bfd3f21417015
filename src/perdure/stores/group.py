"""Group commit: units of work that wait at the same time share one transaction and one flush.

A unit alone is flushed on the caller's own thread, without a hop. More than one go to a writer
thread, so that the event loop runs on while the disk works. Each unit keeps its own guarantee:
a refused one fails alone, and nobody is told "done" before the flush.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from ..core.errors import Conflict, Fenced, PerdureError, StoreUnavailable
from ..core.facts import Lease
from ..core.writes import Append, Write
from .statements import statements

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Row = tuple[Any, ...]

MOST_PER_GROUP = 512


class ConnectionLost(Exception):
    """The connection broke. What was being committed may have landed or not."""


class Rejected(Exception):
    """The database refused a statement; the transaction must be rolled back."""


class Connection(Protocol):
    """One database session, used by one thread at a time."""

    def run(self, query: str, params: Any) -> list[Row]: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def reopen(self) -> None:
        """Drop whatever is left of the old connection and make a new one."""
        ...


class Unit(Protocol[T_co]):
    """One atomic piece of work. It refuses before its first write, or not at all."""

    def apply(self, connection: Connection) -> T_co: ...

    def undo(self) -> None:
        """The transaction did not land, as far as we know: forget what `apply` concluded."""
        ...

    def unsure(self) -> None:
        """Nobody knows whether the transaction landed."""
        ...


class Task(Generic[T]):
    """A unit that may be applied twice without harm."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work

    def apply(self, connection: Connection) -> T:
        return self._work(connection)

    def undo(self) -> None:
        """There is nothing to forget."""

    def unsure(self) -> None:
        """Applying it again is harmless."""


class Commit:
    """The writes of one lease. Applied at most once, however often it is tried."""

    __slots__ = ("landed", "lease", "seq", "tried_at", "writes")

    def __init__(self, lease: Lease, writes: tuple[Write, ...]) -> None:
        self.lease = lease
        self.writes = writes
        self.tried_at = -1
        self.landed = False
        self.seq = 0

    def apply(self, connection: Connection) -> int:
        lease = self.lease
        if lease.limbo:
            settle_limbo(lease, connection)
        if self.landed:
            return self.seq
        events = [write for write in self.writes if isinstance(write, Append)]
        fence = {
            "session": lease.session,
            "epoch": lease.epoch,
            "revision": lease.revision,
            "events": len(events),
        }
        passed = connection.run("fence", fence)
        if not passed:
            raise Fenced
        self.tried_at = lease.revision
        lease.revision += 1
        for write in self.writes:
            for query, params in statements(lease.session, write):
                connection.run(query, params)
        self.seq = cast("int", passed[0][0])
        for seq, event in enumerate(events, start=self.seq - len(events) + 1):
            body = {
                "session": lease.session,
                "seq": seq,
                "type": event.type,
                "body": event.body,
                "at": event.at,
            }
            connection.run("append", body)
        return self.seq

    def undo(self) -> None:
        if self.tried_at >= 0:
            self.lease.revision = min(self.lease.revision, self.tried_at)
            self.tried_at = -1

    def unsure(self) -> None:
        if self.tried_at >= 0 and self not in self.lease.limbo:
            self.lease.limbo.append(self)


def settle_limbo(lease: Lease, connection: Connection) -> None:
    """Learn from the revision which commits of unknown outcome have landed."""
    found = connection.run("standing", {"session": lease.session})
    if not found or found[0][0] != lease.epoch:
        raise Fenced
    _, revision, seq = found[0]
    for one in cast("list[Commit]", lease.limbo):
        one.landed = one.tried_at < revision
        one.seq = seq
    lease.limbo.clear()
    lease.revision = revision


class _Waiting(Generic[T]):
    __slots__ = ("future", "loop", "unit")

    def __init__(self, unit: Unit[T], loop: asyncio.AbstractEventLoop) -> None:
        self.unit = unit
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()


Outcome = tuple[_Waiting[Any], Any, BaseException | None]


class Group:
    """The single writer of a store in this process."""

    def __init__(self, connection: Connection, *, inline: bool) -> None:
        self.connection = connection
        self._inline = inline
        self._broken = False
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting[Any]] = deque()
        self._turn_of: asyncio.AbstractEventLoop | None = None
        self._called = threading.Semaphore(0)
        self._writer: threading.Thread | None = None
        self._closed = False

    def submit(self, unit: Unit[T]) -> asyncio.Future[T]:
        """Queue a unit now; the future is done when its group has been flushed."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(unit, loop)
        if self._closed:
            waiting.future.set_exception(StoreUnavailable("(it is closed)"))
            return waiting.future
        self._waiting.append(waiting)
        if self._turn_of is not loop:
            self._turn_of = loop
            loop.call_soon(self._turn)
        return waiting.future

    def run_now(self, unit: Unit[T]) -> T:
        """Apply a unit after all that wait before it, and block until it is flushed."""
        with self._lock:
            self._deliver(self._flush(self._next()))
            value, error = self._outcomes([unit])[0]
        if error is not None:
            raise error
        return cast("T", value)

    def close(self) -> None:
        """Flush what waits, and end the writer thread."""
        with self._lock:
            while self._waiting:
                self._deliver(self._flush(self._next()))
            self._closed = True
        if self._writer is not None:
            self._called.release()
            self._writer.join()

    def _turn(self) -> None:
        """End of the loop's round: everything that was queued in it goes out together."""
        self._turn_of = None
        if self._inline and len(self._waiting) == 1 and self._lock.acquire(blocking=False):
            try:
                outcomes = self._flush(self._next())
            finally:
                self._lock.release()
            _resolve(outcomes)
        elif self._waiting:
            self._call_writer()

    def _call_writer(self) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="perdure-writer", daemon=True)
            self._writer.start()
        self._called.release()

    def _write(self) -> None:
        while True:
            self._called.acquire()
            with self._lock:
                while self._waiting:
                    self._deliver(self._flush(self._next()))
                if self._closed:
                    return

    def _next(self) -> list[_Waiting[Any]]:
        taken: list[_Waiting[Any]] = []
        while self._waiting and len(taken) < MOST_PER_GROUP:
            one = self._waiting.popleft()
            if not one.loop.is_closed():
                taken.append(one)
        return taken

    def _flush(self, group: list[_Waiting[Any]]) -> list[Outcome]:
        answers = self._outcomes([one.unit for one in group]) if group else []
        return [(one, value, error) for one, (value, error) in zip(group, answers, strict=True)]

    def _outcomes(self, units: list[Unit[Any]]) -> list[tuple[Any, BaseException | None]]:
        """What became of each unit. The connection is whole before anything is written."""
        try:
            if self._broken:
                self._reopen()
            try:
                return self._transact(units)
            except ConnectionLost:
                self._reopen()
                return self._transact(units)
        except Rejected as refusal:
            if len(units) == 1:
                return [(None, Conflict(f"({refusal})"))]
            return [answer for unit in units for answer in self._outcomes([unit])]
        except ConnectionLost as lost:
            return [(None, self._unavailable(unit, f"({lost})")) for unit in units]
        except StoreUnavailable as full:
            return [(None, self._unavailable(unit, full.detail)) for unit in units]

    def _unavailable(self, unit: Unit[Any], detail: str) -> StoreUnavailable:
        error = StoreUnavailable(detail)
        error.again = lambda: self.submit(unit)
        return error

    def _reopen(self) -> None:
        self._broken = True
        self.connection.reopen()
        self._broken = False

    def _transact(self, units: list[Unit[Any]]) -> list[tuple[Any, BaseException | None]]:
        """All units in one transaction; on any failure none of them, or nobody knows."""
        connection = self.connection
        answers: list[tuple[Any, BaseException | None]] = []
        try:
            connection.begin()
            for unit in units:
                try:
                    answers.append((unit.apply(connection), None))
                except (Fenced, PerdureError) as refused:
                    if isinstance(refused, StoreUnavailable):
                        raise
                    answers.append((None, refused))
            connection.commit()
        except ConnectionLost:
            self._broken = True
            _withdraw(units, unsure=True)
            raise
        except (Rejected, StoreUnavailable):
            self._roll_back(units)
            raise
        except Exception as unexpected:
            self._roll_back(units)
            raise Rejected(repr(unexpected)) from unexpected
        return answers

    def _roll_back(self, units: list[Unit[Any]]) -> None:
        _withdraw(units, unsure=False)
        try:
            self.connection.rollback()
        except ConnectionLost:
            self._broken = True

    def _deliver(self, outcomes: list[Outcome]) -> None:
        loops = {one.loop for one, _, _ in outcomes}
        for loop in loops:
            mine = outcomes if len(loops) == 1 else [one for one in outcomes if one[0].loop is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, mine)


def _withdraw(units: list[Unit[Any]], *, unsure: bool) -> None:
    if unsure:
        for unit in units:
            unit.unsure()
    else:
        for unit in reversed(units):
            unit.undo()


def _resolve(outcomes: list[Outcome]) -> None:
    for waiting, value, error in outcomes:
        if waiting.future.done():
            continue
        if error is None:
            waiting.future.set_result(value)
        else:
            waiting.future.set_exception(error)
