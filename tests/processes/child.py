"""A host in a process of its own, to be killed: `python -m tests.processes.child OPTIONS`.

It is told what to do by lines on its standard input and answers on its standard output. SIGTERM makes it
hand over and end. It ends as well when nobody is left to talk to it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from perdure import Fenced, Patience, PerdureError, Runtime, Settings
from perdure.core.facts import InputRow, Lease, Taken
from perdure.core.writes import OpenOp, RecordOp, SettleOp, Write
from perdure.ports import Store
from perdure.stores import SystemClock, open_store

from . import agents
from .world import World

T = TypeVar("T")


class SignallingStore:
    """Sends its own process a signal before or after the `nth` durable write that is called `write`;
    or holds that write back until a gate is open."""

    def __init__(
        self, store: Store, *, how: str, write: str = "", nth: int = 1, number: int = 9, gate: str = ""
    ) -> None:
        self._store = store
        self._gate = gate
        self._how = how
        self._write = write
        self._nth = nth
        self._signal = number
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, lease: Lease, *writes: Write) -> asyncio.Future[int]:
        mine = self._before(" + ".join(map(_in_words, writes)))
        if mine and self._how == "hold":
            return asyncio.ensure_future(self._held(lease, *writes))
        queued = self._store.commit(lease, *writes)
        if mine:
            queued.add_done_callback(lambda _: self._after())
        return queued

    def commit_now(self, lease: Lease, *writes: Write) -> int:
        mine = self._before(" + ".join(map(_in_words, writes)))
        done = self._store.commit_now(lease, *writes)
        if mine:
            self._after()
        return done

    async def take(self, agent: str, key: str, **how: Any) -> Taken:
        return await self._around("take", lambda: self._store.take(agent, key, **how))

    async def put_input(self, row: InputRow) -> bool:
        return await self._around("put_input", lambda: self._store.put_input(row))

    async def suspect(self, host: str, fiber: str | None) -> None:
        await self._around("suspect", lambda: self._store.suspect(host, fiber))

    async def _held(self, lease: Lease, *writes: Write) -> int:
        agents.WORLD.witness("held")
        await agents.passed(self._gate)
        return await self._store.commit(lease, *writes)

    async def _around(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        mine = self._before(what)
        value = await write()
        if mine:
            self._after()
        return value

    def _before(self, what: str) -> bool:
        """Whether this is the write that is looked for."""
        say(wrote=what)
        if self._write not in what:
            return False
        self._count += 1
        mine = self._count == self._nth
        if mine and self._how == "before":
            os.kill(os.getpid(), self._signal)
        return mine

    def _after(self) -> None:
        if self._how == "after":
            os.kill(os.getpid(), self._signal)


def _in_words(write: Write) -> str:
    match write:
        case OpenOp(op) | RecordOp(op) | SettleOp(op):
            return f"{type(write).__name__} {op.kind}"
        case _:
            return type(write).__name__


class SkewedClock(SystemClock):
    """The clock of a machine that is wrong by some milliseconds."""

    def __init__(self, off_by: int) -> None:
        super().__init__()
        self._off_by = off_by

    def now(self) -> int:
        return super().now() + self._off_by


def say(**what: Any) -> None:
    os.write(1, json.dumps(what, default=str).encode() + b"\n")


# --- what it can be asked


class Obedience:
    def __init__(self, rt: Runtime, world: World) -> None:
        self.rt = rt
        self.world = world

    async def answer(self, ask: dict[str, Any]) -> None:
        number, do = ask.pop("number"), ask.pop("do")
        try:
            say(number=number, value=await getattr(self, f"do_{do}")(**ask))
        except (Exception, Fenced) as error:
            say(number=number, error=type(error).__name__, message=str(error))

    def session(self, agent: str, key: str) -> Any:
        return self.rt.session(getattr(agents, agent), key)

    async def do_start(
        self, agent: str, key: str, method: str, args: Sequence[Any] = (), once: str | None = None
    ) -> str:
        session, target = self.session(agent, key), getattr(getattr(agents, agent), method)
        if once is None:
            return (await session.start(target, *args)).id
        return (await session.start_once(once, target, *args)).id

    async def do_call(self, agent: str, key: str, method: str, args: Sequence[Any] = ()) -> Any:
        return await self.session(agent, key).call(method, *args)

    async def do_wait(self, agent: str, key: str, fiber: str) -> Any:
        return await self.session(agent, key).wait(fiber)

    async def do_cancel(self, agent: str, key: str, fiber: str) -> bool:
        return await self.session(agent, key).cancel(fiber)

    async def do_resolve(self, agent: str, key: str, op: str, happened: bool, result: Any = None) -> None:
        await self.session(agent, key).resolve(op, happened=happened, result=result)

    async def do_answer(self, agent: str, key: str, fiber: str, said: str) -> None:
        await self.session(agent, key).answer(fiber, said)

    async def do_nothing(self) -> None:
        """Answers when the loop has turned a few times."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def do_traffic(self, **how: Any) -> None:
        await agents.traffic(self.rt, **how)

    async def do_most_pages(self, count: int) -> None:
        """The database file may not grow beyond this many pages (0: what it has now)."""
        raw = self.rt.store.group.connection.raw  # type: ignore[attr-defined]
        raw.execute(f"PRAGMA max_page_count = {count or raw.pragma('page_count')}").fetchall()


async def obey(obedience: Obedience) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    answering: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = loop.create_task(obedience.answer(json.loads(line)))
        answering.add(task)
        task.add_done_callback(answering.discard)
    os._exit(3)


def settings_of(given: dict[str, Any]) -> Settings:
    patience = Patience(**given.pop("patience", {}))
    return Settings(patience=patience, **given)


async def main(options: dict[str, Any]) -> None:
    world = agents.WORLD = World(Path(options["folder"]))
    clock = SkewedClock(options["clock_off_by"]) if "clock_off_by" in options else None
    if "wall_off_by" in options:
        real = time.time_ns
        time.time_ns = lambda: real() + options["wall_off_by"] * 1_000_000
    try:
        store: Any = open_store(options["url"], clock=clock)
    except PerdureError as error:
        say(failed=type(error).__name__, message=str(error))
        return
    if "signal" in options:
        store = SignallingStore(store, **options["signal"])
    runtime = Runtime(
        store, agents=agents.ALL, settings=settings_of(options.get("settings", {})), clock=clock
    )
    async with runtime as rt:
        serving = asyncio.ensure_future(rt.serve())
        obeying = asyncio.ensure_future(obey(Obedience(rt, world)))
        await asyncio.sleep(0)
        say(ready=os.getpid(), host=rt.host.id)
        await serving
        obeying.cancel()
    await store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    asyncio.run(main(json.loads(sys.argv[1])))
