"""LangGraph with its SQLite checkpointer: a looping graph, one node run per step, in threads.

The checkpointer sets WAL itself; synchronous=FULL is set here. With durability="sync" the
checkpoint of a step is on disk before the next step starts.
"""

from __future__ import annotations

import sqlite3
import time
from importlib.metadata import version
from itertools import pairwise
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph

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


class State(TypedDict):
    n: int
    result: str


def connect(params: Params) -> SqliteSaver:
    connection = sqlite3.connect(params.store / "langgraph.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    saver = SqliteSaver(connection)
    saver.setup()
    return saver


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}, "recursion_limit": 1_000_000}


def stepping(saver: SqliteSaver, ends: float, count: int, began: list[float]) -> Any:
    """A graph whose one node returns to itself until the window closes."""

    def step(state: State) -> State:
        began.append(time.perf_counter())
        return {"n": state["n"] + 1, "result": RESULT}

    def again(state: State) -> str:
        return "step" if state["n"] < count and time.perf_counter() < ends else END

    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", again, ["step", END])
    return graph.compile(checkpointer=saver)


def run(graph: Any, name: str) -> int:
    return graph.invoke({"n": 0, "result": ""}, thread(name), durability="sync")["n"]


def settings(params: Params) -> Results:
    saver = connect(params)
    read_back = sqlite_settings(*(saver.conn.execute(query).fetchone()[0] for query in READ_BACK))
    return {"version": f"langgraph {version('langgraph')}", **read_back, "durability": "sync"}


def steps(params: Params) -> Results:
    began: list[float] = []
    graph = stepping(connect(params), params.ends(), params.count, began)
    results = rate(lambda: run(graph, "one"))
    gaps = (later - earlier for earlier, later in pairwise(began))
    return {**results, "p50_us": p50_us(gaps)}


def crowd(params: Params) -> Results:
    graph = stepping(connect(params), params.ends(), params.count // params.sessions, [])
    return rate(lambda: in_threads(params.sessions, lambda n: run(graph, f"session-{n}")))


def fibers(params: Params) -> Results:
    @entrypoint(checkpointer=connect(params))
    def empty(_input: object) -> None:
        return None

    def one(name: str) -> None:
        empty.invoke(1, thread(name), durability="sync")

    ends = params.ends()

    def worker(w: int) -> int:
        return len(each_timed(lambda n: one(f"{w}-{n}"), ends, params.count))

    at_once = rate(lambda: in_threads(params.at_once, worker))
    alone = each_timed(lambda n: one(f"alone-{n}"), params.ends(), params.count)
    return {**at_once, "alone_p50_us": p50_us(alone)}


def recovery(params: Params) -> Results:
    """LangGraph finds nothing by itself: the application knows its threads and invokes each again."""
    executions = Executions(params.store)

    class Unit(State):
        unit: int

    def step(state: Unit) -> Any:
        executions.add(state["unit"], state["n"])
        return {"n": state["n"] + 1, "result": RESULT}

    def hold(state: Unit) -> Any:
        entered(state["unit"])
        time.sleep(HOLD_SECONDS)
        return {}

    graph = StateGraph(Unit)
    graph.add_node("step", step)
    graph.add_node("hold", hold)
    graph.add_edge(START, "step")
    graph.add_conditional_edges(
        "step", lambda state: "step" if state["n"] < params.recorded else "hold", ["step", "hold"]
    )
    durable = graph.compile(checkpointer=connect(params))

    def invoke(unit: int) -> int:
        start = None if params.resume else {"n": 0, "result": "", "unit": unit}
        durable.invoke(start, thread(f"unit-{unit}"), durability="sync")
        return 1

    in_threads(params.units, invoke)
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
