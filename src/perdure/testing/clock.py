"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import asyncio
import heapq
import itertools

ROUNDS = 25


class ManualClock:
    """Time for tests: nothing passes unless `advance` is called. Starts on 2023-11-14, 22:13:20 UTC."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._start = now
        self._passed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def now(self) -> int:
        return self._start + round(self._passed * 1000)

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        """Return when the clock has been advanced by that much."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + seconds, next(self._numbers), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Let time pass. Sleepers wake in the order of their times, each at its own time, and what
        they do in the event loop is done before the next one wakes. Threads are not waited for."""
        until = self._passed + seconds
        await self.settle()
        while (at := self.next_wake) is not None and at <= until:
            self._passed = max(self._passed, at)
            _, _, woken = heapq.heappop(self._sleepers)
            woken.set_result(None)
            await self.settle()
        self._passed = max(self._passed, until)
        await self.settle()

    async def settle(self) -> None:
        """Let everything run that is ready to."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)

    @property
    def next_wake(self) -> float | None:
        """When (`monotonic`) the first sleeper wakes, or None if nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None
