"""Single-threaded per session: methods, alarm callbacks and hooks pass one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from ..core.errors import Reentrant

_HELD: ContextVar[tuple[Turn, ...]] = ContextVar("perdure_turns", default=())


class Turn:
    """One passage. Its method may wait for fibers in several tasks: others pass from its first
    wait on, until its last one is over."""

    __slots__ = ("_lock", "_returning", "_waits", "blocked_on", "over", "turnstile")

    def __init__(self, turnstile: Turnstile, lock: asyncio.Lock) -> None:
        self.turnstile = turnstile
        self.blocked_on: Turnstile | None = None
        self.over = False
        self._lock = lock
        self._waits = 0
        self._returning: asyncio.Task[None] | None = None

    def end(self) -> None:
        self.over = True
        self._let_others_pass()

    def wait(self) -> None:
        self._waits += 1
        self._let_others_pass()

    async def go_on(self) -> None:
        """One wait is over. Returns when it is this passage's turn again, also if cancelled."""
        self._waits -= 1
        if self._waits or self.over:
            return
        self._returning = self._returning or asyncio.create_task(self._return())
        await _to_its_end(self._returning)

    def _let_others_pass(self) -> None:
        if self.turnstile.holder is self:
            self.turnstile.holder = None
            self._lock.release()

    async def _return(self) -> None:
        await self._lock.acquire()
        self._returning = None
        self.turnstile.holder = self
        if self._waits or self.over:
            self._let_others_pass()


class Turnstile:
    """First come, first served. Whoever waits for a fiber of the session lets others pass."""

    __slots__ = ("_lock", "holder", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.holder: Turn | None = None
        self._lock = asyncio.Lock()

    @property
    def taken(self) -> bool:
        return self._lock.locked()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        held = tuple(one for one in _HELD.get() if not one.over)
        with self._blocking(held):
            await self._lock.acquire()
        mine = self.holder = Turn(self, self._lock)
        token = _HELD.set((*held, mine))
        try:
            yield
        finally:
            _HELD.reset(token)
            mine.end()

    @contextmanager
    def _blocking(self, held: tuple[Turn, ...]) -> Generator[None]:
        """While `held` wait for this turnstile. Raises if they would wait for ever: whoever has
        it waits, directly or not, for one of them."""
        at: Turnstile | None = self
        passed: set[Turnstile] = set()
        while at is not None and at not in passed:
            if any(one.turnstile is at for one in held):
                raise Reentrant(f"(session {self.session})")
            passed.add(at)
            at = at.holder.blocked_on if at.holder is not None else None
        for one in held:
            one.blocked_on = self
        try:
            yield
        finally:
            for one in held:
                one.blocked_on = None

    @asynccontextmanager
    async def released(self) -> AsyncGenerator[None]:
        """Let others pass while this task waits, if it holds the turn at all."""
        held = _HELD.get()
        mine = next((one for one in held if one.turnstile is self and not one.over), None)
        if mine is None:
            yield
            return
        token = _HELD.set(tuple(one for one in held if one is not mine))
        mine.wait()
        try:
            yield
        finally:
            try:
                await mine.go_on()
            finally:
                _HELD.reset(token)


def leave_all_turns() -> None:
    """A fiber's body runs beside the turns: it holds none."""
    _HELD.set(())


async def _to_its_end(task: asyncio.Task[None]) -> None:
    """Wait for a task that must not be left half done; a cancellation is passed on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as asked:
            cancelled = asked
    if cancelled is not None:
        raise cancelled
