"""The floor: raw SQLite doing, without any runtime, the commits a durable runtime has to do.

One thread, one connection, WAL and synchronous=FULL. Where many work at once, all their
commits of a round share one transaction and so one flush; no runtime can flush less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from benchmarks.measure import (
    HOLD_SECONDS,
    READ_BACK,
    RESULT,
    Executions,
    Params,
    Results,
    each_timed,
    entered,
    main,
    p50_us,
    rate,
    sqlite_settings,
    ticks,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, epoch INTEGER NOT NULL, revision INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fibers (
    session_id TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL, stash TEXT, PRIMARY KEY (session_id, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ops (
    session_id TEXT NOT NULL, fiber_id TEXT NOT NULL, step INTEGER NOT NULL, effect TEXT NOT NULL,
    settled_at INTEGER, result TEXT, PRIMARY KEY (session_id, fiber_id, step)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    session_id TEXT NOT NULL, fiber_id TEXT NOT NULL, ended_at INTEGER NOT NULL, result TEXT,
    PRIMARY KEY (session_id, fiber_id)
) WITHOUT ROWID;
"""
NEW_SESSION = "INSERT INTO sessions VALUES (?, 'host', 1, 0)"
RAISE_REVISION = "UPDATE sessions SET revision = revision + 1 WHERE id = ? AND epoch = 1 AND revision = ?"
OPEN_OP = "INSERT INTO ops VALUES (?, 'f', ?, 'once', NULL, NULL)"
SETTLE_OP = "UPDATE ops SET settled_at = 1, result = ? WHERE session_id = ? AND fiber_id = 'f' AND step = ?"
RECORD_OP = "INSERT INTO ops VALUES (?, 'f', ?, 'read', 1, ?)"
START_FIBER = "INSERT INTO fibers VALUES (?, ?, 'empty', 1, 0, NULL)"
END_FIBER = "DELETE FROM fibers WHERE session_id = ? AND id = ?"
KEEP_RESULT = "INSERT INTO results VALUES (?, ?, 1, 'null')"


class Floor:
    """The tables, and the commits on them."""

    def __init__(self, store: Path) -> None:
        self.database = apsw.Connection(str(store / "floor.db"))
        self.execute: Callable[..., Any] = self.database.execute
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            self.execute(f"PRAGMA {pragma}").fetchall()
        self.execute(SCHEMA)
        self.revisions: dict[str, int] = {}

    def create(self, count: int) -> list[str]:
        """That many sessions, in one commit."""
        ids = [f"session-{n:08}" for n in range(count)]
        self.execute("BEGIN IMMEDIATE")
        self.database.executemany(NEW_SESSION, ((one,) for one in ids))
        self.execute("COMMIT")
        self.revisions = dict.fromkeys(ids, 0)
        return ids

    def commit(self, group: list[tuple[str, tuple[tuple[str, tuple[object, ...]], ...]]]) -> None:
        """Each session's writes behind its revision check; one transaction for the group."""
        self.execute("BEGIN IMMEDIATE")
        for session, writes in group:
            self.execute(RAISE_REVISION, (session, self.revisions[session]))
            assert self.database.changes() == 1
            self.revisions[session] += 1
            for sql, values in writes:
                self.execute(sql, values)
        self.execute("COMMIT")

    def step(self, sessions: list[str], n: int, effect: str) -> None:
        """One recorded step of each session: one commit, or an intent and then a result."""
        if effect == "read":
            self.commit([(one, ((RECORD_OP, (one, n, RESULT)),)) for one in sessions])
        else:
            self.commit([(one, ((OPEN_OP, (one, n)),)) for one in sessions])
            self.commit([(one, ((SETTLE_OP, (RESULT, one, n)),)) for one in sessions])

    def fiber(self, sessions: list[str], n: int) -> None:
        """Start and finish one empty fiber in each session."""
        name = f"fiber-{n:08}"
        self.commit([(one, ((START_FIBER, (one, name)),)) for one in sessions])
        self.commit([(one, ((END_FIBER, (one, name)), (KEEP_RESULT, (one, name)))) for one in sessions])


def settings(params: Params) -> Results:
    floor = Floor(params.store)
    read_back = (floor.execute(query).fetchall()[0][0] for query in READ_BACK)
    return {"version": f"apsw {apsw.apsw_version()}", **sqlite_settings(*read_back)}


def steps(params: Params) -> Results:
    floor = Floor(params.store)
    one = floor.create(1)
    taken: list[float] = []

    def work() -> int:
        taken.extend(each_timed(lambda n: floor.step(one, n, params.effect), params.ends(), params.count))
        return len(taken)

    return {**rate(work), "p50_us": p50_us(taken)}


def crowd(params: Params) -> Results:
    floor = Floor(params.store)
    sessions = floor.create(params.sessions)

    def work() -> int:
        done = 0
        for n in ticks(params.ends(), params.count // params.sessions):
            floor.step(sessions, n, params.effect)
            done += len(sessions)
        return done

    return rate(work)


def fibers(params: Params) -> Results:
    floor = Floor(params.store)
    sessions = floor.create(params.at_once)

    def together() -> int:
        done = 0
        for n in ticks(params.ends(), params.count // params.at_once):
            floor.fiber(sessions, n)
            done += len(sessions)
        return done

    at_once = rate(together)
    alone = each_timed(lambda n: floor.fiber(sessions[:1], params.count + n), params.ends(), params.count)
    return {**at_once, "alone_p50_us": p50_us(alone)}


def recovery(params: Params) -> Results:
    floor = Floor(params.store)
    if params.resume:
        _resume(floor)
    else:
        _fill(floor, params, Executions(params.store))
    time.sleep(HOLD_SECONDS)
    return {}


def _fill(floor: Floor, params: Params, executions: Executions) -> None:
    sessions = floor.create(params.units)
    floor.commit([(one, ((START_FIBER, (one, "f")),)) for one in sessions])
    for step in range(params.recorded):
        for unit in range(params.units):
            executions.add(unit, step)
        floor.step(sessions, step, "read")
    for unit in range(params.units):
        entered(unit)


def _resume(floor: Floor) -> None:
    """Take over: bump the epochs and count the attempts in one commit, then read what is recorded."""
    floor.execute("BEGIN IMMEDIATE")
    floor.execute("UPDATE sessions SET epoch = epoch + 1, revision = revision + 1")
    floor.execute("UPDATE fibers SET epoch = epoch + 1, attempt = attempt + 1")
    floor.execute("COMMIT")
    for session, fiber in floor.execute("SELECT session_id, id FROM fibers").fetchall():
        query = "SELECT step, result FROM ops WHERE session_id = ? AND fiber_id = ?"
        floor.execute(query, (session, fiber)).fetchall()
        entered(int(session.removeprefix("session-")))


def open_(params: Params) -> Results:
    """Wake a session with few recorded ops and one with many, and append an op to each, in turn."""
    floor = Floor(params.store)
    few, many = floor.create(2)
    floor.execute("BEGIN IMMEDIATE")
    for session, count in ((few, params.few), (many, params.many)):
        floor.database.executemany(RECORD_OP, ((session, n, RESULT) for n in range(count)))
    floor.execute("COMMIT")
    opened: dict[str, list[float]] = {few: [], many: []}
    appended: dict[str, list[float]] = {few: [], many: []}
    for _ in range(100):
        for session in (few, many):
            began = time.perf_counter()
            last = _wake(floor, session)
            awake = time.perf_counter()
            floor.step([session], last + 1, "read")
            opened[session].append(awake - began)
            appended[session].append(time.perf_counter() - awake)
    few_ms, many_ms = (p50_us(seconds) / 1e3 for seconds in opened.values())
    return {
        "few_ms": few_ms,
        "many_ms": many_ms,
        "ops_ratio": many_ms / few_ms,
        "append_ms": p50_us(appended[many]) / 1e3,
    }


def _wake(floor: Floor, session: str) -> int:
    """Take the session in a commit, read its row, its fibers and its last op; that op's step."""
    floor.commit([(session, ())])
    floor.execute("SELECT * FROM sessions WHERE id = ?", (session,)).fetchall()
    floor.execute("SELECT * FROM fibers WHERE session_id = ?", (session,)).fetchall()
    query = "SELECT step, result FROM ops WHERE session_id = ? AND fiber_id = 'f' ORDER BY step DESC LIMIT 1"
    return floor.execute(query, (session,)).fetchall()[0][0]


if __name__ == "__main__":
    main(
        {
            "settings": settings,
            "steps": steps,
            "crowd": crowd,
            "fibers": fibers,
            "recovery": recovery,
            "open": open_,
        }
    )
