"""Several lives of one store: hosts that begin, end in order, or are killed."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Agent, Fiber, Patience, Runtime, Settings
from perdure.ports import Clock, Store
from perdure.testing.clock import ManualClock

AT_ONCE = Settings(patience=Patience(spacing=()), tryout=0.0, grace=0.0)
"""Attempts are not spaced, and nothing is given time to finish."""

PATIENT = 10.0
"""Seconds after which a test that waits has failed. No test waits this long."""


class Lives:
    """Hosts on one store, one after the other or side by side."""

    def __init__(self, store: Store, settings: Settings, clock: Clock | None = None) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self._open: list[Runtime] = []

    async def begin(self, *agents: type[Agent], settings: Settings | None = None) -> Runtime:
        """A new host. It takes up what earlier ones left."""
        runtime = Runtime(self.store, agents=agents, settings=settings or self.settings, clock=self.clock)
        await runtime.__aenter__()
        self._open.append(runtime)
        return runtime

    @property
    def here(self) -> Runtime:
        """The only host there is."""
        (runtime,) = self._open
        return runtime

    async def leave(self, runtime: Runtime) -> None:
        """The host ends in order, and hands its sessions over."""
        self._open.remove(runtime)
        await runtime.__aexit__(None, None, None)

    async def kill(self, runtime: Runtime) -> None:
        """The host dies: it writes nothing more, hands nothing over, and its lease is over."""
        self._open.remove(runtime)
        await runtime.host.end()
        await asyncio.to_thread(self.store.retire, runtime.host.id)

    async def end(self) -> None:
        for runtime in reversed(self._open):
            await runtime.host.end()
        self._open.clear()


class World:
    """What the outside has seen: how often each thing was done to it, and gates that hold a call."""

    def __init__(self) -> None:
        self.did: Counter[str] = Counter()
        self.order: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}

    def do(self, name: str) -> str:
        """Something irreversible."""
        self.did[name] += 1
        self.order.append(name)
        return name

    async def do_and_wait(self, name: str) -> str:
        """Something irreversible whose answer comes when the gate is opened."""
        self.do(name)
        await self.gate(name).wait()
        return name

    def gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def open(self, *names: str) -> None:
        for name in names:
            self.gate(name).set()


async def until(condition: Callable[[], Awaitable[Any] | Any], what: str = "it") -> Any:
    """Wait, within bounds, until `condition` gives something, and return that."""
    try:
        async with asyncio.timeout(PATIENT):
            while True:
                found = condition()
                if inspect.isawaitable(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"waited in vain until {what}") from None


async def soon(work: Awaitable[Any]) -> Any:
    """The result of `work`, which must come within bounds."""
    async with asyncio.timeout(PATIENT):
        return await work


async def drive(clock: ManualClock, work: Awaitable[Any]) -> Any:
    """The result of `work`, with time passing as long as it takes."""
    task = asyncio.ensure_future(work)
    async with asyncio.timeout(PATIENT):
        while not task.done():
            await clock.advance(0.25)
            await asyncio.sleep(0.001)
    return await task


def hold_before_calls(world: World, patch: pytest.MonkeyPatch) -> None:
    """Every op waits between its intent and its call until the gate `may act` is open."""
    may_act = Fiber.may_act

    async def held(self: Fiber) -> None:
        await world.do_and_wait("may act")
        await may_act(self)

    patch.setattr(Fiber, "may_act", held)


async def settle(rounds: int = 50) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)
