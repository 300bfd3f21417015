"""The composition root of the library: one argument decides where sessions live."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar

from .core.errors import PerdureError
from .engine.agent import Agent
from .engine.host import Host
from .engine.session import Session
from .engine.settings import Settings
from .ports import Clock, Store
from .stores import SystemClock, open_store

A = TypeVar("A", bound=Agent)


class Runtime:
    """A host in this process: `async with Runtime("sqlite:///agents.db", agents=[Research]) as rt`.

    Entering it takes up all work that an earlier process left. Leaving it hands its sessions
    over: what still runs goes on at the next host.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        agents: Iterable[type[Agent]] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = store
        self._agents = tuple(agents)
        self._settings = settings
        self._clock = clock
        self._host: Host | None = None

    async def __aenter__(self) -> Runtime:
        clock = self._clock or SystemClock()
        store = open_store(self._given, clock=self._clock) if isinstance(self._given, str) else self._given
        host: Host | None = None
        try:
            host = Host(store, clock, self._agents, self._settings)
            await host.begin()
        except BaseException:
            if host is not None:
                await host.end()
            if store is not self._given:
                await store.close()
            raise
        self._host = host
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        host, self._host = self.host, None
        try:
            await host.drain()
            await host.end()
            await asyncio.to_thread(host.store.retire, host.id)
        finally:
            if host.store is not self._given:
                await host.store.close()

    @property
    def entered(self) -> bool:
        """Whether sessions can be used now."""
        return self._host is not None

    @property
    def host(self) -> Host:
        if self._host is None:
            raise PerdureError("(the runtime is used inside `async with Runtime(...)`)")
        return self._host

    @property
    def store(self) -> Store:
        return self.host.store

    def session(self, agent: type[A], key: str) -> Session[A]:
        """The session of `agent` with this key. It exists from its first use on."""
        return Session(self.host, agent, key)

    async def serve(self) -> None:
        """Run until SIGTERM or SIGINT. A second one ends the grace period of the hand-over."""
        loop = asyncio.get_running_loop()
        asked = asyncio.Event()

        def ask() -> None:
            if asked.is_set():
                self.host.hurry()
            asked.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
        try:
            await asked.wait()
            await self.host.drain()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
