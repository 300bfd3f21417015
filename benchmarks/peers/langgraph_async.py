"""LangGraph with its async SQLite checkpointer: the functional API, one task per step.

A task's result is handed to a background write and not waited for, also with durability="sync":
the next step starts before it is on disk, and a SIGKILL loses it. So its steps are weaker than everybody
else's; it counts as a peer all the same. The rates here count until the last write is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.errors import EmptyInputError
from langgraph.func import entrypoint, task

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
)


@asynccontextmanager
async def connect(params: Params) -> AsyncGenerator[AsyncSqliteSaver]:
    path = str(params.store / "langgraph.db")
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.conn.execute("PRAGMA synchronous=FULL")
        await saver.setup()
        yield saver


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


@task
async def step(n: int) -> str:
    return RESULT


def settings(params: Params) -> Results:
    async def read_back() -> Results:
        async with connect(params) as saver:
            rows = [await saver.conn.execute_fetchall(query) for query in READ_BACK]
            return sqlite_settings(*(next(iter(row))[0] for row in rows))

    weak = "sync (task results are not waited for)"
    release = f"langgraph {version('langgraph')}"
    return {"version": release, **asyncio.run(read_back()), "durability": weak}


async def sessions(params: Params, how_many: int, taken: list[float]) -> int:
    async with connect(params) as saver:
        ends, count = params.ends(), params.count // how_many

        @entrypoint(checkpointer=saver)
        async def session(_input: object) -> int:
            mine = await each_awaited(step, ends, count)
            taken.extend(mine)
            return len(mine)

        runs = (session.ainvoke(1, thread(f"session-{n}"), durability="sync") for n in range(how_many))
        return sum(await asyncio.gather(*runs))


def steps(params: Params) -> Results:
    taken: list[float] = []
    return {**rate(lambda: asyncio.run(sessions(params, 1, taken))), "p50_us": p50_us(taken)}


def crowd(params: Params) -> Results:
    return rate(lambda: asyncio.run(sessions(params, params.sessions, [])))


async def empties(params: Params, workers: int, taken: list[float]) -> int:
    async with connect(params) as saver:
        ends = params.ends()

        @entrypoint(checkpointer=saver)
        async def empty(_input: object) -> None:
            return None

        async def worker(w: int) -> None:
            async def one(n: int) -> None:
                await empty.ainvoke(1, thread(f"{workers}-{w}-{n}"), durability="sync")

            taken.extend(await each_awaited(one, ends, params.count))

        await asyncio.gather(*map(worker, range(workers)))
        return len(taken)


def fibers(params: Params) -> Results:
    at_once = rate(lambda: asyncio.run(empties(params, params.at_once, [])))
    alone: list[float] = []
    asyncio.run(empties(params, 1, alone))
    return {**at_once, "alone_p50_us": p50_us(alone)}


async def in_flight(params: Params) -> None:
    executions = Executions(params.store)

    @task
    async def executed_step(unit: int, n: int) -> str:
        executions.add(unit, n)
        return RESULT

    async with connect(params) as saver:

        @entrypoint(checkpointer=saver)
        async def one(unit: int) -> None:
            for n in range(params.recorded):
                await executed_step(unit, n)
            entered(unit)
            await asyncio.sleep(HOLD_SECONDS)

        async def invoke(unit: int) -> None:
            try:
                await one.ainvoke(None if params.resume else unit, thread(f"unit-{unit}"), durability="sync")
            except EmptyInputError:
                # The unit had passed its steps, but the kill came before its first checkpoint was on disk.
                await one.ainvoke(unit, thread(f"unit-{unit}"), durability="sync")

        await asyncio.gather(*map(invoke, range(params.units)))


def recovery(params: Params) -> Results:
    """LangGraph finds nothing by itself: the application knows its threads and invokes each again."""
    asyncio.run(in_flight(params))
    return {}


if __name__ == "__main__":
    main(
        {
            "settings": settings,
            "steps": steps,
            "crowd": crowd,
            "fibers": fibers,
            "recovery": recovery,
        }
    )
