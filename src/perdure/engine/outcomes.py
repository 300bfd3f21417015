"""Waiting for fibers: what became of one, also after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

from ..core.errors import FiberCancelled, FiberFailed, Interrupted, NotFound
from ..core.facts import EndedRow
from ..ports import Clock, Store
from .values import decode, revive

Outcome = tuple[EndedRow, BaseException | None]


class _Moved(Exception):
    """The fiber was evicted in mid-work."""


class Outcomes:
    """One future per fiber that this host runs; anything else is read from the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._expected: dict[str, asyncio.Future[Outcome]] = {}

    def expect(self, fiber: str) -> None:
        if fiber not in self._expected:
            self._expected[fiber] = asyncio.get_running_loop().create_future()

    def finished(self, ended: EndedRow, cause: BaseException | None) -> None:
        waiting = self._expected.pop(ended.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result((ended, cause))

    def unknown(self, fiber: str, why: Exception) -> None:
        """This host will not learn what becomes of the fiber."""
        waiting = self._expected.pop(fiber, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(why)
            waiting.exception()

    def moved(self, fiber: str) -> None:
        """The fiber goes on in another life: whoever waits must look again."""
        self.unknown(fiber, _Moved())

    def unknown_all(self, why: Exception) -> None:
        for fiber in list(self._expected):
            self.unknown(fiber, why)

    async def result(self, fiber: str, shape: type[Any] | None) -> Any:
        """Wait for the fiber and return its result, or raise what ended it."""
        while True:
            waiting = self._expected.get(fiber)
            if waiting is not None:
                try:
                    return _value(*await asyncio.shield(waiting), shape)
                except _Moved:
                    continue
            ended = await self._store.ended_fiber(fiber)
            if ended is not None:
                return _value(ended, None, shape)
            row = await self._store.fiber(fiber)
            if row is None and await self._store.ended_fiber(fiber) is None:
                raise NotFound(f"(fiber {fiber})")
            if row is not None and row.parked is not None:
                raise Interrupted(f"({decode(row.parked)['message']})")
            await self._clock.sleep(self._store.poll_every)


def _value(ended: EndedRow, cause: BaseException | None, shape: type[Any] | None) -> Any:
    if cause is not None:
        raise cause
    match ended.outcome:
        case "done":
            return revive(ended.value, shape)
        case "cancelled":
            raise FiberCancelled(f"({ended.id})")
        case "failed":
            raise FiberFailed(ended.id, ended.error or "")
