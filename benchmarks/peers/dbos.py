"""DBOS Transact on SQLite.

DBOS opens SQLite with the library's defaults (rollback journal, synchronous=FULL). Here every
connection is put into WAL, which is faster for it, and FULL is set explicitly, both through
SQLAlchemy's connect event. Workflows and steps are plain functions, which is faster for it than
coroutines in every scenario.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import sqlalchemy
from dbos import DBOS

from benchmarks.measure import (
    HOLD_SECONDS,
    READ_BACK,
    RESULT,
    Executions,
    Params,
    Results,
    each_timed,
    entered,
    in_threads,
    main,
    p50_us,
    rate,
    sqlite_settings,
)

seen: list[Results] = []
taken: list[float] = []
executions: Executions | None = None


@sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
def durable(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    seen.append(sqlite_settings(*(connection.execute(query).fetchone()[0] for query in READ_BACK)))


@DBOS.step()
def step(n: int) -> str:
    return RESULT


@DBOS.step()
def executed_step(unit: int, n: int) -> str:
    assert executions is not None
    executions.add(unit, n)
    return RESULT


@DBOS.workflow()
def session(ends: float, count: int) -> int:
    mine = each_timed(step, ends, count)
    taken.extend(mine)
    return len(mine)


@DBOS.workflow()
def empty() -> None:
    return None


@DBOS.workflow()
def unit_in_flight(unit: int, recorded: int) -> None:
    for n in range(recorded):
        executed_step(unit, n)
    entered(unit)
    time.sleep(HOLD_SECONDS)


def launch(params: Params) -> None:
    DBOS(
        config={
            "name": "perdure-bench",
            "system_database_url": f"sqlite:///{params.store}/dbos.db",
            "application_version": "bench",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()


def settings(params: Params) -> Results:
    launch(params)
    session(params.ends(), 1)
    weakest = min(seen, key=lambda one: ("OFF", "NORMAL", "FULL").index(one["synchronous"]))
    return {"version": f"dbos {version('dbos')}", **weakest}


def steps(params: Params) -> Results:
    launch(params)
    return {**rate(lambda: session(params.ends(), params.count)), "p50_us": p50_us(taken)}


def crowd(params: Params) -> Results:
    launch(params)

    def work() -> int:
        ends, count = params.ends(), params.count // params.sessions
        handles = [DBOS.start_workflow(session, ends, count) for _ in range(params.sessions)]
        return sum(handle.get_result() for handle in handles)

    return rate(work)


def fibers(params: Params) -> Results:
    launch(params)
    ends = params.ends()

    def worker(_n: int) -> int:
        return len(each_timed(lambda _: empty(), ends, params.count))

    at_once = rate(lambda: in_threads(params.at_once, worker))
    alone = each_timed(lambda _: empty(), params.ends(), params.count)
    return {**at_once, "alone_p50_us": p50_us(alone)}


def recovery(params: Params) -> Results:
    """A launch recovers what this executor left pending; the application does nothing."""
    global executions
    executions = Executions(params.store)
    launch(params)
    if not params.resume:
        for unit in range(params.units):
            DBOS.start_workflow(unit_in_flight, unit, params.recorded)
    time.sleep(HOLD_SECONDS)
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
