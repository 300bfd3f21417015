"""The machine's clock and the database's, made safe: they never run backwards."""

from __future__ import annotations

import asyncio
import threading
import time

_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Seconds on a clock that nobody sets. Where the system can tell, sleeping machines count on:
    a lease that expired while the lid was closed has expired."""
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)


class SystemClock:
    """Wall time. Set back, it goes on at half speed until the wall clock has caught up."""

    def __init__(self, not_before: int = 0) -> None:
        self._lock = threading.Lock()
        self._said = float(not_before)
        self._seen = monotonic()

    def now(self) -> int:
        with self._lock:
            wall, seen = time.time_ns() // 1_000_000, monotonic()
            self._said = max(wall, self._said + (seen - self._seen) * 500)
            self._seen = seen
            return int(self._said)

    def monotonic(self) -> float:
        return monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FollowedClock:
    """The clock of another machine: what it said last, and the time since then by our own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = 0
        self._heard = monotonic()
        self._last = 0

    def hear(self, said: int, heard: float) -> None:
        """It said `said` no later than at `heard`. So `now` is never ahead of it."""
        with self._lock:
            self._said, self._heard = said, heard

    def now(self) -> int:
        with self._lock:
            self._last = max(self._last, self._said + int((monotonic() - self._heard) * 1000))
            return self._last
