"""The machine's clock, made safe: it never runs backwards."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time that goes on by the monotonic clock when the wall clock is set back."""

    def __init__(self, not_before: int = 0) -> None:
        self._ahead = 0
        self._last = not_before
        self._seen = time.monotonic()

    def now(self) -> int:
        wall = time.time_ns() // 1_000_000 + self._ahead
        seen = time.monotonic()
        due = self._last + int((seen - self._seen) * 1000)
        if wall < self._last:
            self._ahead += due - wall
            wall = due
        self._last, self._seen = wall, seen
        return wall

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
