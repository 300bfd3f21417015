"""Crashes in process: cut a scenario at every durable write, go on in a new life, look at the end.

A crash can only fall between two writes, so a crash test is a loop over them: before each,
after each, and "applied but the answer lost". A cut life is dropped as a killed process is:
nothing that it still wanted to write is written, nothing that it still does is counted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, cast

from ..core.facts import InputRow, Lease, OpRow, Taken
from ..core.recovery import Patience
from ..core.writes import OpenOp, RecordOp, SettleOp, Write
from ..engine.agent import Agent
from ..engine.host import Host
from ..engine.settings import Settings
from ..ports import Clock, Store
from ..runtime import Runtime
from ..stores import SystemClock
from .faults import lose_next_answer

T = TypeVar("T")

How = Literal["before", "after", "lost"]
HOWS: tuple[How, ...] = ("before", "after", "lost")
MOST_LIVES = 12
MOST_SECONDS = 60.0

AT_ONCE = Settings(patience=Patience(spacing=()), tryout=0.0, grace=0.0)
"""Settings of a life in a sweep: attempts are not spaced."""


class Scenario(Protocol):
    """What is cut: an agent at work, and a client that wants something of it.

    `drive` is the client. It is called in every life, so it must be safe to repeat, as a client
    is that tries again with the same key; when it returns, the scenario is over. `alive` is set
    to False when a life is cut: what the scenario counts must not count after that.
    """

    agents: Sequence[type[Agent]]
    alive: bool

    async def drive(self, rt: Runtime) -> None: ...


@dataclass(frozen=True, slots=True)
class Cut:
    """At the `at`-th durable write of the whole story (counted from 1)."""

    at: int
    how: How


@dataclass(slots=True)
class Story:
    """What happened in a run with some cuts."""

    cuts: tuple[Cut, ...]
    scenario: Scenario
    writes: list[str] = field(default_factory=list[str])
    """What was written, in words, one entry per durable write."""

    open_at_cut: list[OpRow] = field(default_factory=list[OpRow])
    """The ops that were open in the store when a life was cut."""

    lives: int = 0


async def run(
    make_scenario: Callable[[], Scenario],
    cuts: Sequence[Cut],
    make_store: Callable[[], Awaitable[Store] | Store],
    *,
    settings: Settings = AT_ONCE,
    clock: Clock | None = None,
) -> Story:
    """Run the scenario to its end, through the cuts."""
    scenario = make_scenario()
    story = Story(tuple(cuts), scenario)
    made = make_store()
    store = made if not isinstance(made, Awaitable) else await made
    try:
        async with asyncio.timeout(MOST_SECONDS):
            while story.lives < MOST_LIVES:
                story.lives += 1
                scenario.alive = True
                if await _live(scenario, story, store, settings, clock or SystemClock()):
                    return story
        raise AssertionError(f"the scenario did not end in {MOST_LIVES} lives: {story.cuts}, {story.writes}")
    except TimeoutError:
        raise AssertionError(f"the scenario hangs: {story.cuts}, {story.writes}") from None
    finally:
        await store.close()


async def sweep(
    make_scenario: Callable[[], Scenario],
    make_store: Callable[[], Awaitable[Store] | Store],
    *,
    pairs: bool = False,
    sample: int | None = None,
    seed: int = 0,
) -> AsyncGenerator[Story]:
    """One story per cut, or per pair of cuts; or a seeded `sample` of them."""
    chance = random.Random(seed)
    whole = await run(make_scenario, (), make_store)
    firsts = [Cut(at, how) for at in range(1, len(whole.writes) + 1) for how in HOWS]
    if not pairs:
        for cut in firsts if sample is None else chance.sample(firsts, min(sample, len(firsts))):
            yield await run(make_scenario, (cut,), make_store)
        return
    left = sample
    chance.shuffle(firsts)
    while firsts and left != 0:
        first = firsts.pop()
        known = await run(make_scenario, (first,), make_store)
        seconds = [Cut(at, how) for at in range(first.at + 1, len(known.writes) + 1) for how in HOWS]
        share = seconds if left is None else chance.sample(seconds, min(left, 4, len(seconds)))
        for second in share:
            yield await run(make_scenario, (first, second), make_store)
        left = None if left is None else left - len(share)


async def _live(scenario: Scenario, story: Story, store: Store, settings: Settings, clock: Clock) -> bool:
    """One life. True if the scenario came to its end in it."""
    crashed = asyncio.Event()
    cutting = CuttingStore(store, story, crashed)
    runtime = Runtime(cast("Store", cutting), agents=scenario.agents, settings=settings, clock=clock)
    host: Host | None = None
    try:
        entered = await _unless(crashed, runtime.__aenter__())
        host = runtime.host if runtime.entered else None
        if not entered:
            return False
        return await _unless(crashed, scenario.drive(runtime)) and await _unless(
            crashed, runtime.__aexit__(None, None, None)
        )
    finally:
        if crashed.is_set():
            scenario.alive = False
            await asyncio.to_thread(store.retire, cutting.host)
            story.open_at_cut += await _open_ops(store)
            if host is not None:
                await host.end()
            await cutting.drop()


async def _unless(crashed: asyncio.Event, doing: Coroutine[Any, Any, Any]) -> bool:
    """Do it, or stop at the crash. False if it crashed."""
    work = asyncio.ensure_future(doing)
    crash = asyncio.ensure_future(crashed.wait())
    try:
        await asyncio.wait((work, crash), return_when=asyncio.FIRST_COMPLETED)
        if crashed.is_set():
            return False
        await work
        return True
    finally:
        crash.cancel()
        if not work.done():
            work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _open_ops(store: Store) -> list[OpRow]:
    sessions = await store.sessions(limit=1000)
    return [row for session in sessions for row in await store.open_ops(session.id) if row.outcome is None]


class CuttingStore:
    """A store that dies at the cuts of a story. Reads pass through; a dead one never answers."""

    def __init__(self, store: Store, story: Story, crashed: asyncio.Event) -> None:
        self._store = store
        self._story = story
        self._crashed = crashed
        self._cuts = {cut.at: cut.how for cut in story.cuts}
        self._queued: set[asyncio.Future[int]] = set()
        self.host = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, lease: Lease, *writes: Write) -> asyncio.Future[int]:
        what = " + ".join(map(_in_words, writes))
        queued = asyncio.ensure_future(self._cut(what, lambda: self._store.commit(lease, *writes)))
        self._queued.add(queued)
        queued.add_done_callback(self._queued.discard)
        return queued

    def commit_now(self, lease: Lease, *writes: Write) -> int:
        self._story.writes.append(" + ".join(map(_in_words, writes)))
        how = self._cuts.get(len(self._story.writes))
        if self._crashed.is_set() or how == "before":
            self._crashed.set()
            raise asyncio.CancelledError
        if how == "lost":
            lose_next_answer(self._store)
        done = self._store.commit_now(lease, *writes)
        if how == "after":
            self._crashed.set()
            raise asyncio.CancelledError
        return done

    async def take(self, agent: str, key: str, *, host: str, hold: int, lenient: int = 0) -> Taken:
        self.host = host
        take = self._store.take
        return await self._cut("take", lambda: take(agent, key, host=host, hold=hold, lenient=lenient))

    async def put_input(self, row: InputRow) -> bool:
        return await self._cut("put_input", lambda: self._store.put_input(row))

    async def suspect(self, host: str, fiber: str | None) -> None:
        await self._cut("suspect", lambda: self._store.suspect(host, fiber))

    async def close(self) -> None:
        """The store outlives the life."""

    async def drop(self) -> None:
        """Nobody waits for the answers of a dead store."""
        for one in list(self._queued):
            one.cancel()
        await asyncio.gather(*self._queued, return_exceptions=True)

    async def _cut(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        if self._crashed.is_set():
            return await _for_ever()
        self._story.writes.append(what)
        how = self._cuts.get(len(self._story.writes))
        if how == "before":
            self._crashed.set()
            return await _for_ever()
        if how == "lost":
            lose_next_answer(self._store)
        value = await write()
        if how == "after":
            self._crashed.set()
            return await _for_ever()
        return value


async def _for_ever() -> Any:
    await asyncio.get_running_loop().create_future()


def _in_words(write: Write) -> str:
    match write:
        case OpenOp(op) | RecordOp(op) | SettleOp(op):
            return f"{type(write).__name__} {op.kind}"
        case _:
            return type(write).__name__
