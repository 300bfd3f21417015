"""A host's lease: renewed from its own thread for as long as the event loop lives."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback

from ..core.errors import PerdureError
from ..ports import Clock, Store
from .settings import Settings

log = logging.getLogger("perdure")

TICK = 0.25
TRY_AGAIN = 1.0


class Tenure:
    """Renews the lease, and watches the loop: a host that cannot act must not hold on."""

    def __init__(self, store: Store, clock: Clock, settings: Settings, host: str, label: str) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._host = host
        self._label = label
        self._deadline = self._lenient_until = 0.0
        self._beats = 0
        self._warned = False
        self._loop_thread = 0
        self._ended = threading.Event()
        self._ticking: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._keep, name="perdure-lease", daemon=True)

    def begin(self) -> None:
        """Keep the lease, which has been renewed, from here on."""
        self._loop_thread = threading.get_ident()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._ticking is not None:
            self._ticking.cancel()

    @property
    def in_force(self) -> bool:
        """Whether nobody can have taken our sessions: by our own clock, counted from before
        the last renewal was sent."""
        return self._clock.monotonic() < self._deadline

    @property
    def lenient(self) -> int:
        """How long (ms) other hosts are taken to live on after their leases have expired.

        After our own lease has lapsed, the store was away for the others too: they get the
        time to renew theirs before anybody takes their sessions.
        """
        return int(self._settings.lease_lives * 1000) if self._clock.monotonic() < self._lenient_until else 0

    def renew(self) -> None:
        """Extend the lease now. Blocks."""
        sent = self._clock.monotonic()
        self._store.renew(self._host, self._label, int(self._settings.lease_lives * 1000))
        if self._deadline and sent > self._deadline:
            self._lenient_until = sent + self._settings.lease_lives
        self._deadline = sent + self._settings.lease_lives

    async def _tick(self) -> None:
        while True:
            self._beats += 1
            await asyncio.sleep(TICK)

    def _keep(self) -> None:
        renewed, heard, stalled = self._clock.monotonic(), 0, 0.0
        while not self._ended.wait(TICK):
            now = self._clock.monotonic()
            stalled = stalled + TICK if heard == self._beats else 0.0
            heard = self._beats
            if not stalled:
                self._warned = False
            if stalled >= self._settings.slow_step and not self._warned:
                self._warned = True
                log.warning("the event loop has not run for %.1f s; it is at:\n%s", stalled, self._where())
            if now - renewed >= self._settings.lease_lives / 3 and stalled < self._settings.loop_stalls:
                renewed = now if self._renewed() else now - self._settings.lease_lives / 3 + TRY_AGAIN

    def _renewed(self) -> bool:
        try:
            self.renew()
            return True
        except PerdureError as error:
            log.warning("the lease of this host could not be renewed: %s", error)
            return False

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        return "".join(traceback.format_stack(frame, 6)) if frame is not None else "an unknown place"
