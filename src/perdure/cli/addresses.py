"""What a person types to name a store, a session, an op, a fiber or an alarm."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from ..core.errors import BadInput, BadStoreUrl, NotFound
from ..core.facts import AlarmRow, FiberRow, OpRow, SessionRow
from ..core.identity import session_id
from ..ports import Store
from ..stores import open_store

STORE_VARIABLE = "PERDURE_STORE"
SQLITE = "sqlite:///"


@asynccontextmanager
async def beside_the_host(given: str | None) -> AsyncGenerator[Store]:
    """The store, opened to look and to leave inputs; whoever runs its sessions goes on."""
    store = open_store(store_url(given), host=False)
    try:
        yield store
    finally:
        await store.close()


def store_url(given: str | None) -> str:
    """The URL of a store that exists: a typo in a file's name must not make a new one."""
    named = given or os.environ.get(STORE_VARIABLE)
    if not named:
        raise BadInput(f"(name the store: --store URL, or the variable {STORE_VARIABLE})")
    if named.startswith(SQLITE):
        path = named.removeprefix(SQLITE)
    elif "://" in named:
        return named
    else:
        path = named
    if path in ("", ":memory:", "memory:"):
        raise BadStoreUrl("(a store in memory can be seen by its own process only)")
    _check_file(Path(path))
    return f"{SQLITE}{path}"


def _check_file(path: Path) -> None:
    """Only a database that perdure made: another program's must not get our tables."""
    if not path.is_file():
        raise BadStoreUrl(f"(there is no file {path})")
    try:
        raw: Any = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        raise BadStoreUrl(f"(cannot open {path}: {error})") from error
    try:
        ours: list[Any] = raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'perdure_schema'").fetchall()
    except apsw.NotADBError:
        raise BadStoreUrl(f"({path} is not an SQLite database)") from None
    except apsw.Error as error:
        raise BadStoreUrl(f"(cannot read {path}: {error})") from error
    finally:
        raw.close()
    if not ours:
        raise BadStoreUrl(f"({path} is an SQLite database, but perdure keeps nothing in it)")


async def find_session(store: Store, named: str) -> SessionRow:
    """By id, or by `Agent/key`. The key may contain slashes."""
    agent, slash, key = named.partition("/")
    row = await store.session(session_id(agent, key) if slash else named)
    if row is None:
        hint = "" if slash else "; a session is named by its id or as Agent/key"
        raise NotFound(f"(session {named}{hint})")
    return row


async def find_doubt(store: Store, named: str) -> OpRow:
    row = await store.open_op(named)
    if row is None:
        raise NotFound(f"(no op {named} is in doubt; `perdure show SESSION` lists those that are)")
    if row.outcome != "doubt":
        raise BadInput(f"(op {named} is in flight, not in doubt: there is nothing to settle yet)")
    return row


async def find_fiber(store: Store, named: str) -> FiberRow:
    row = await store.fiber(named)
    if row is not None:
        return row
    ended = await store.ended_fiber(named)
    if ended is not None:
        raise BadInput(f"(fiber {named} has ended already: {ended.outcome})")
    raise NotFound(f"(fiber {named})")


async def find_alarm(store: Store, session: SessionRow, named: str) -> AlarmRow:
    """By id, or by the key it was set with."""
    for row in await store.alarms(session.id):
        if named in (row.id, row.key):
            return row
    raise NotFound(f"(alarm {named} of {session.agent}/{session.key})")
