"""Single-threaded per session: methods, alarm callbacks and hooks pass one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from ..core.errors import Reentrant

_HELD: ContextVar[tuple[Turnstile, ...]] = ContextVar("perdure_turns", default=())


class Turnstile:
    """First come, first served. Whoever waits for a fiber of the session lets others pass."""

    __slots__ = ("_lock", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self._lock = asyncio.Lock()

    @property
    def taken(self) -> bool:
        return self._lock.locked()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        held = _HELD.get()
        if self in held:
            raise Reentrant(f"(session {self.session})")
        async with self._lock:
            token = _HELD.set((*held, self))
            try:
                yield
            finally:
                _HELD.reset(token)

    @asynccontextmanager
    async def released(self) -> AsyncGenerator[None]:
        """Let others pass while this task waits, if it holds the turn at all."""
        held = _HELD.get()
        if self not in held:
            yield
            return
        token = _HELD.set(tuple(one for one in held if one is not self))
        self._lock.release()
        try:
            yield
        finally:
            await self._lock.acquire()
            _HELD.reset(token)


def leave_all_turns() -> None:
    """A fiber's body runs beside the turns: it holds none."""
    _HELD.set(())
