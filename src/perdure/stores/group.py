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
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar, cast

from ..core.errors import Conflict, Fenced, PerdureError, StoreUnavailable
from ..core.facts import Lease
from ..core.writes import Append, Write
from .statements import Params, statements

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Row = tuple[Any, ...]

MOST_PER_GROUP = 512
LAST = "~"
"""What belongs to no session comes after everything that does."""


class ConnectionLost(Exception):
    """The connection broke. What was being committed may have landed or not."""


class Rejected(Exception):
    """The database refused a statement; the transaction must be rolled back."""

    culprit: int = 0
    """Which unit of the transaction it was; their number if that is not known."""


class Contended(Rejected):
    """The transaction was given up for the sake of another one; it may be tried again."""


class Connection(Protocol):
    """One database session, used by one thread at a time."""

    def run(self, query: str, params: Params) -> list[Row]: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def reopen(self) -> None:
        """Drop whatever is left of the old connection and make a new one."""
        ...


class Unit(Protocol[T_co]):
    """One atomic piece of work. It refuses before its first write, or not at all."""

    @property
    def session(self) -> str:
        """What it locks. Everybody locks in the same order, so that nobody waits in a circle."""
        ...

    def apply(self, connection: Connection) -> T_co: ...

    def undo(self) -> None:
        """The transaction did not land: forget what `apply` concluded in it."""
        ...

    def unsure(self) -> None:
        """Nobody knows whether the transaction landed."""
        ...


class Task(Generic[T]):
    """A unit that may be applied twice without harm."""

    __slots__ = ("_work", "session")

    def __init__(self, work: Callable[[Connection], T], session: str = LAST) -> None:
        self._work = work
        self.session = session

    def apply(self, connection: Connection) -> T:
        return self._work(connection)

    def undo(self) -> None:
        """There is nothing to forget."""

    def unsure(self) -> None:
        """Applying it again is harmless."""


class Commit:
    """The writes of one lease. Applied at most once, however often it is tried.

    `tried_at` is the revision it was last tried on, or None while it is certainly not in the
    store. After an unknown outcome it is in the lease's limbo, until the revision tells.
    """

    __slots__ = ("events", "landed", "lease", "seq", "tried_at", "writes")

    def __init__(self, lease: Lease, writes: tuple[Write, ...]) -> None:
        self.lease = lease
        self.writes = writes
        self.events = [write for write in writes if isinstance(write, Append)]
        self.tried_at: int | None = None
        self.landed = False
        self.seq = 0

    @property
    def session(self) -> str:
        return self.lease.session

    def apply(self, connection: Connection) -> int:
        lease = self.lease
        if lease.limbo:
            settle_limbo(lease, connection)
        if self.landed:
            return self.seq
        fence = {
            "session": lease.session,
            "epoch": lease.epoch,
            "revision": lease.revision,
            "events": len(self.events),
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
        for seq, event in enumerate(self.events, start=self.seq - len(self.events) + 1):
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
        if self._open:
            self.lease.revision = min(self.lease.revision, cast("int", self.tried_at))
            self.tried_at = None

    def unsure(self) -> None:
        if self._open:
            self.lease.limbo.append(self)

    @property
    def _open(self) -> bool:
        """Whether it was tried in the transaction that is going on."""
        return self.tried_at is not None and not self.landed and self not in self.lease.limbo


def settle_limbo(lease: Lease, connection: Connection) -> None:
    """Learn from the revision which commits of unknown outcome have landed."""
    found = connection.run("standing", {"session": lease.session})
    if not found or found[0][0] != lease.epoch:
        raise Fenced
    _, lease.revision, seq = found[0]
    for one in reversed(cast("list[Commit]", lease.limbo)):
        one.landed = cast("int", one.tried_at) < lease.revision
        if one.landed:
            one.seq = seq
            seq -= len(one.events)
        else:
            one.tried_at = None
    lease.limbo.clear()


Answer = tuple[Any, BaseException | None]


class _Waiting(Protocol):
    """A unit in the queue, and whom to tell."""

    unit: Unit[Any]
    loop: asyncio.AbstractEventLoop | None

    def resolve(self, value: Any, error: BaseException | None) -> None: ...


class _Awaited(Generic[T]):
    """Somebody in an event loop waits for it."""

    __slots__ = ("future", "loop", "unit")

    def __init__(self, unit: Unit[T], loop: asyncio.AbstractEventLoop) -> None:
        self.unit = unit
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def resolve(self, value: T, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class _Blocked(Generic[T]):
    """A thread stands still for it."""

    __slots__ = ("done", "error", "loop", "unit", "value")

    def __init__(self, unit: Unit[T]) -> None:
        self.unit = unit
        self.loop: asyncio.AbstractEventLoop | None = None
        self.done = threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    def resolve(self, value: T, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self.done.set()


Outcome = tuple[_Waiting, Any, BaseException | None]


class Group:
    """The single writer of a store in this process."""

    def __init__(self, connection: Connection, *, inline: bool) -> None:
        self.connection = connection
        self._inline = inline
        self._broken = False
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._turn_of: asyncio.AbstractEventLoop | None = None
        self._called = threading.Semaphore(0)
        self._starting = threading.Lock()
        self._writer: threading.Thread | None = None
        self._closed = False

    def submit(self, unit: Unit[T]) -> asyncio.Future[T]:
        """Queue a unit now; the future is done when its group has been flushed."""
        loop = asyncio.get_running_loop()
        waiting = _Awaited(unit, loop)
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
        blocked = _Blocked(unit)
        self._waiting.append(blocked)
        if self._lock.acquire(blocking=False):
            try:
                while not blocked.done.is_set():
                    _deliver(self._flush())
            finally:
                self._lock.release()
        else:
            self._call_writer()
            blocked.done.wait()
        if blocked.error is not None:
            raise blocked.error
        return cast("T", blocked.value)

    def close(self) -> None:
        """Flush what waits, and end the writer thread. Whatever comes later is refused."""
        with self._lock:
            while self._waiting:
                _deliver(self._flush())
            self._closed = True
        if self._writer is not None:
            self._called.release()
            self._writer.join()

    def _turn(self) -> None:
        """End of the loop's round: everything that was queued in it goes out together."""
        self._turn_of = None
        if self._inline and len(self._waiting) == 1 and self._lock.acquire(blocking=False):
            try:
                outcomes = self._flush()
            finally:
                self._lock.release()
            _resolve(outcomes)
        elif self._waiting:
            self._call_writer()

    def _call_writer(self) -> None:
        with self._starting:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="perdure-writer", daemon=True)
                self._writer.start()
        self._called.release()

    def _write(self) -> None:
        while True:
            self._called.acquire()
            while self._waiting:
                with self._lock:
                    _deliver(self._flush())
            if self._closed:
                return

    def _flush(self) -> list[Outcome]:
        """Apply the next group, each session's units in the order of their arrival."""
        group: list[_Waiting] = []
        while self._waiting and len(group) < MOST_PER_GROUP:
            one = self._waiting.popleft()
            if one.loop is None or not one.loop.is_closed():
                group.append(one)
        if len(group) > 1:
            group.sort(key=_session)
        try:
            answers = self._answers([one.unit for one in group])
        except BaseException:
            _deliver([(one, None, self._unavailable(one.unit, "(it was interrupted)")) for one in group])
            raise
        return [(one, value, error) for one, (value, error) in zip(group, answers, strict=True)]

    def _answers(self, units: list[Unit[Any]]) -> list[Answer]:
        """What became of each unit: in one transaction, or apart from those that are refused."""
        answers: list[Answer] = []
        parts = [units] if units else []
        while parts:
            part = parts.pop(0)
            try:
                answers += self._attempt(part)
            except Rejected as refusal:
                if len(part) == 1:
                    answers.append((None, self._refused(part[0], refusal)))
                else:
                    parts[:0] = _without(part, refusal.culprit)
            except ConnectionLost as lost:
                answers += [(None, self._unavailable(unit, f"({lost})")) for unit in part]
            except StoreUnavailable as full:
                answers += [(None, self._unavailable(unit, full.detail)) for unit in part]
        return answers

    def _attempt(self, units: list[Unit[Any]]) -> list[Answer]:
        """One transaction, tried a second time if the connection breaks."""
        if self._closed:
            raise StoreUnavailable("(it is closed)")
        if self._broken:
            self._reopen()
        try:
            return self._transact(units)
        except ConnectionLost:
            self._reopen()
            return self._transact(units)

    def _refused(self, unit: Unit[Any], refusal: Rejected) -> PerdureError:
        if isinstance(refusal, Contended):
            return self._unavailable(unit, f"({refusal})")
        return Conflict(f"({refusal})")

    def _unavailable(self, unit: Unit[Any], detail: str) -> StoreUnavailable:
        error = StoreUnavailable(detail)
        error.again = lambda: self.submit(unit)
        return error

    def _reopen(self) -> None:
        """The connection is whole before anything is written."""
        self._broken = True
        try:
            self.connection.reopen()
        except (ConnectionLost, StoreUnavailable):
            raise
        except Exception as unexpected:
            raise StoreUnavailable(f"({unexpected!r})") from unexpected
        self._broken = False

    def _transact(self, units: list[Unit[Any]]) -> list[Answer]:
        """All units in one transaction; on any failure none of them, or nobody knows."""
        answers: list[Answer] = []
        try:
            self.connection.begin()
            for unit in units:
                answers.append(_applied(unit, self.connection))
            self.connection.commit()
        except StoreUnavailable:
            self._roll_back(units)
            raise
        except ConnectionLost:
            self._lose(units)
            raise
        except Exception as failure:
            self._roll_back(units)
            refusal = failure if isinstance(failure, Rejected) else Rejected(repr(failure))
            refusal.culprit = len(answers)
            raise refusal from failure
        except BaseException:
            self._lose(units)
            raise
        return answers

    def _roll_back(self, units: list[Unit[Any]]) -> None:
        for unit in reversed(units):
            unit.undo()
        try:
            self.connection.rollback()
        except (ConnectionLost, Rejected, StoreUnavailable):
            self._broken = True

    def _lose(self, units: list[Unit[Any]]) -> None:
        self._broken = True
        for unit in units:
            unit.unsure()


def _applied(unit: Unit[Any], connection: Connection) -> Answer:
    try:
        return unit.apply(connection), None
    except (Fenced, PerdureError) as refused:
        if isinstance(refused, StoreUnavailable):
            raise
        return None, refused


def _without(units: list[Unit[Any]], culprit: int) -> list[list[Unit[Any]]]:
    """The units before the refused one, that one, and those after it; all apart if it is not known."""
    if culprit >= len(units):
        return [[unit] for unit in units]
    return [part for part in (units[:culprit], [units[culprit]], units[culprit + 1 :]) if part]


def _session(waiting: _Waiting) -> str:
    return waiting.unit.session


def _deliver(outcomes: list[Outcome]) -> None:
    """Tell everybody, from any thread: each in its own event loop."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, mine in by_loop.items():
        if loop is None:
            _resolve(mine)
            continue
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(outcomes: list[Outcome]) -> None:
    for waiting, value, error in outcomes:
        waiting.resolve(value, error)
