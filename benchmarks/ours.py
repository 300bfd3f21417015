"""Perdure itself, through its public surface, with the settings it has when nobody sets any.

Opening and closing the runtime is not counted, as it is not for the floor. Where a scenario needs
a large store, it is filled directly: what is measured begins afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import apsw

from benchmarks.measure import (
    HOLD_SECONDS,
    READ_BACK,
    RESULT,
    Executions,
    Params,
    Results,
    each_awaited,
    entered,
    main,
    p50_us,
    rate,
    sqlite_settings,
    ticks,
)
from perdure import Agent, Fiber, Runtime, __version__, fiber
from perdure.core.facts import Effect, OpRow
from perdure.core.identity import Place, op_id
from perdure.core.writes import Append, HandOver, RecordOp, Stash
from perdure.stores import open_store

WAKES_AT_ONCE = 200
OPENINGS = 100
SWEEPS = 100

taken: list[float] = []
executions: Executions | None = None


async def step(n: int) -> str:
    return RESULT


async def executed_step(unit: int, n: int) -> str:
    assert executions is not None
    executions.add(unit, n)
    return RESULT


class Worker(Agent):
    @fiber
    async def steps(self, f: Fiber, ends: float, count: int, effect: Effect) -> int:
        mine = await each_awaited(lambda n: f.op("step", step, n, effect=effect), ends, count)
        taken.extend(mine)
        return len(mine)

    @fiber
    async def empty(self, f: Fiber) -> None:
        return None

    @fiber
    async def unit_in_flight(self, f: Fiber, unit: int, recorded: int) -> None:
        for n in range(recorded):
            await f.op("step", executed_step, unit, n, effect="read")
        entered(unit)
        await asyncio.sleep(HOLD_SECONDS)


def url(store: Path) -> str:
    return f"sqlite:///{store}/ours.db"


@contextmanager
def running(params: Params) -> Generator[tuple[asyncio.Runner, Runtime]]:
    """An open runtime, and what runs coroutines in its event loop."""
    with asyncio.Runner() as runner:
        runtime = Runtime(url(params.store), agents=[Worker])
        runner.run(runtime.__aenter__())
        yield runner, runtime
        runner.run(runtime.__aexit__(None, None, None))


def settings(params: Params) -> Results:
    with running(params) as (_, runtime):
        store: Any = runtime.store
        execute = store.group.connection.raw.execute
        read_back = [execute(query).fetchall()[0][0] for query in READ_BACK]
    return {"version": f"perdure {__version__}", **sqlite_settings(*read_back)}


async def sessions(runtime: Runtime, params: Params, how_many: int) -> int:
    ends, count, effect = params.ends(), params.count // how_many, params.effect

    async def one(n: int) -> int:
        return await (await runtime.session(Worker, f"session-{n}").start(Worker.steps, ends, count, effect))

    return sum(await asyncio.gather(*map(one, range(how_many))))


def steps(params: Params) -> Results:
    with running(params) as (runner, runtime):
        return {**rate(lambda: runner.run(sessions(runtime, params, 1))), "p50_us": p50_us(taken)}


def crowd(params: Params) -> Results:
    with running(params) as (runner, runtime):
        return rate(lambda: runner.run(sessions(runtime, params, params.sessions)))


async def empties(runtime: Runtime, params: Params, workers: int) -> list[float]:
    ends = params.ends()

    async def worker(w: int) -> list[float]:
        session = runtime.session(Worker, f"session-{w}")

        async def one(_n: int) -> None:
            await (await session.start(Worker.empty))

        return await each_awaited(one, ends, params.count // workers)

    return list(chain(*await asyncio.gather(*map(worker, range(workers)))))


def fibers(params: Params) -> Results:
    with running(params) as (runner, runtime):
        at_once = rate(lambda: len(runner.run(empties(runtime, params, params.at_once))))
        return {**at_once, "alone_p50_us": p50_us(runner.run(empties(runtime, params, 1)))}


async def in_flight(params: Params) -> None:
    """An open runtime takes up by itself what a killed process left; the application does nothing."""
    global executions
    executions = Executions(params.store)
    async with Runtime(url(params.store), agents=[Worker]) as runtime:
        if not params.resume:
            starts = (
                runtime.session(Worker, f"unit-{unit}").start(Worker.unit_in_flight, unit, params.recorded)
                for unit in range(params.units)
            )
            await asyncio.gather(*starts)
        await asyncio.sleep(HOLD_SECONDS)


def recovery(params: Params) -> Results:
    asyncio.run(in_flight(params))
    return {}


class Long(Agent):
    """A session that has recorded much: in the ledger of a fiber that still runs, or in its log.

    The fiber stands before its last recorded op when it is cut. Entered again it gets that one
    from the ledger, and then records another one.
    """

    passed: asyncio.Queue[tuple[float, float]]

    @fiber
    async def work(self, f: Fiber) -> None:
        await f.op(
            "step", step if f.attempt == 0 and f.stashed is None else self.is_recorded, 0, effect="read"
        )
        opened_at = perf_counter()
        await f.stash("before the last op")
        began = perf_counter()
        await f.op("step", step, 0, effect="read")
        self.passed.put_nowait((opened_at, perf_counter() - began))
        await asyncio.sleep(HOLD_SECONDS)

    async def is_recorded(self, n: int) -> str:
        raise AssertionError("the last op was not found in the ledger")

    async def ping(self) -> None:
        return None


class Warm(Long):
    """Is woken first in each runtime, so that the others find compiled statements."""


class Few(Long): ...


class Many(Long): ...


class FewEvents(Long): ...


class ManyEvents(Long): ...


async def record_ops(params: Params, agent: type[Long], count: int) -> None:
    """A fiber with that many recorded ops, handed over by its host. The last one is after its stash."""
    agent.passed = asyncio.Queue()
    async with Runtime(url(params.store)) as runtime:
        await runtime.session(agent, "one").start(agent.work)
        await agent.passed.get()
    store = open_store(url(params.store))
    try:
        held = await store.take(agent.__name__, "one", host="filling", hold=0)
        (row,) = held.fibers
        (first, *_) = await store.ops_from(row.id, "", 0, 1)
        like_it = {name: getattr(first, name) for name in OpRow.__annotations__}
        rows = (OpRow(**{**like_it, "id": op_id(Place(row.id, "", n)), "step": n}) for n in range(2, count))
        steps_before_last = b'{"":%d}' % (count - 1)
        await store.commit(
            held.lease, *map(RecordOp, rows), Stash(row.id, b'"filled"', steps_before_last), HandOver()
        )
    finally:
        await store.close()


async def append_events(params: Params, agent: type[Long], count: int) -> None:
    store = open_store(url(params.store))
    try:
        held = await store.take(agent.__name__, "one", host="filling", hold=0)
        body = b'"%s"' % RESULT.encode()
        await store.commit(held.lease, *(Append("filled", body, n) for n in range(count)), HandOver())
    finally:
        await store.close()


async def open_ops(runtime: Runtime, agent: type[Long]) -> tuple[float, float]:
    """Seconds until the woken session's fiber has its last recorded op, and for one op more."""
    began = perf_counter()
    await runtime.session(agent, "one").call(agent.ping)
    opened_at, appended = await asyncio.wait_for(agent.passed.get(), 10)
    return opened_at - began, appended


async def open_events(runtime: Runtime, agent: type[Long], count: int) -> float:
    """Seconds to wake the session and read its last event."""
    session = runtime.session(agent, "one")
    began = perf_counter()
    await session.call(agent.ping)
    (last,) = await session.events(after=count - 1)
    assert last.seq == count
    return perf_counter() - began


async def openings(params: Params) -> Results:
    for agent, count in ((Warm, params.few), (Few, params.few), (Many, params.many)):
        await record_ops(params, agent, count)
    for agent, count in ((Warm, params.few), (FewEvents, params.few), (ManyEvents, params.many)):
        await append_events(params, agent, count)
    opened: dict[type[Long], list[float]] = {agent: [] for agent in (Few, Many, FewEvents, ManyEvents)}
    appended: list[float] = []
    ends = perf_counter() + 6 * params.seconds
    for n in ticks(ends, OPENINGS):
        # No agents are named here, so each session sleeps until it is asked for.
        async with Runtime(url(params.store)) as runtime:
            await open_ops(runtime, Warm)
            await open_events(runtime, Warm, params.few)
            for agent in in_turn(n, (Few, Many)):
                to_open, to_append = await open_ops(runtime, agent)
                opened[agent].append(to_open)
                if agent is Many:
                    appended.append(to_append)
            for agent, count in in_turn(n, ((FewEvents, params.few), (ManyEvents, params.many))):
                opened[agent].append(await open_events(runtime, agent, count))
    few, many, few_events, many_events = (p50_us(seconds) / 1e3 for seconds in opened.values())
    return {
        "few_ms": few,
        "many_ms": many,
        "ops_ratio": many / few,
        "append_ms": p50_us(appended) / 1e3,
        "events_ratio": many_events / few_events,
    }


def in_turn(n: int, pair: Sequence[Any]) -> Sequence[Any]:
    """Each of the two comes first every other time."""
    return pair if n % 2 else pair[::-1]


def open_(params: Params) -> Results:
    return asyncio.run(openings(params))


async def wake_all(runtime: Runtime, keys: range) -> None:
    """Wake the sessions; each does one recorded step and is idle then."""

    async def one(n: int) -> None:
        await (await runtime.session(Worker, f"idle-{n}").start(Worker.steps, float("1e30"), 1, "read"))

    for start in keys[::WAKES_AT_ONCE]:
        await asyncio.gather(*map(one, range(start, min(start + WAKES_AT_ONCE, keys.stop))))
    taken.clear()


def resident() -> int:
    """Bytes of memory that this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def idle(params: Params) -> Results:
    with running(params) as (runner, runtime):
        runner.run(wake_all(runtime, range(WAKES_AT_ONCE)))
        before = resident()
        runner.run(wake_all(runtime, range(WAKES_AT_ONCE, WAKES_AT_ONCE + params.idle)))
        kb_each = (resident() - before) / params.idle / 1024
    return {"kb_each": kb_each}


SLEEPING = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO sessions (id, agent, key, host, epoch, revision, seq, taken_at, created_at)
SELECT printf('s%031d', n), 'Worker', printf('stored-%d', n), iif(n % 2, 'dead', NULL), 1, 9, 0, 1, 1
FROM numbers
"""
WAITING = """
INSERT INTO alarms (id, session, kind, method, args, spec, key, due_at, created_at)
SELECT 'a' || id, id, 'user', 'empty', '[]', '{}', NULL, 9e15, 1 FROM sessions WHERE id LIKE '%0'
"""


async def fill(store: Path, count: int) -> Path:
    """A store with that many sessions, none of them awake; every tenth has an alarm set for later."""
    store.mkdir()
    async with Runtime(url(store)):
        """Creates the tables."""
    database: Any = apsw.Connection(str(store / "ours.db"))
    with database:
        database.execute(SLEEPING, (count,))
        database.execute(WAITING)
    database.close()
    return store


async def sweep(runtime: Runtime) -> float:
    """What a host does again and again: look for what is due, and when to look again."""
    began = perf_counter()
    await runtime.host.sweep()
    await runtime.store.next_due_at()
    return perf_counter() - began


async def resident_beside(store: Path) -> int:
    async with Runtime(url(store), agents=[Worker]) as runtime:
        for _ in range(SWEEPS):
            await sweep(runtime)
        return resident()


async def beside_stored(params: Params) -> Results:
    few = await fill(params.store / "few", min(1_000, params.stored))
    many = await fill(params.store / "many", params.stored)
    # What filling and the first opening leave behind in this process is in both numbers.
    await resident_beside(many)
    few_bytes, many_bytes = await resident_beside(few), await resident_beside(many)
    async with Runtime(url(few), agents=[Worker]) as beside_few, Runtime(url(many), agents=[Worker]) as rest:
        both = [(await sweep(beside_few), await sweep(rest)) for _ in range(SWEEPS)]
    few_us, many_us = (p50_us(seconds) for seconds in zip(*both, strict=True))
    return {
        "bytes_each": max(0, many_bytes - few_bytes) / params.stored,
        "sweep_ms": many_us / 1e3,
        "sweep_ratio": many_us / few_us,
    }


def stored(params: Params) -> Results:
    return asyncio.run(beside_stored(params))


if __name__ == "__main__":
    main(
        {
            "settings": settings,
            "steps": steps,
            "crowd": crowd,
            "fibers": fibers,
            "recovery": recovery,
            "open": open_,
            "idle": idle,
            "stored": stored,
        }
    )
