"""What only SQLite does: one host per file, a lock that dies with its process, the disk."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from perdure.core.errors import BadStoreUrl, StoreInUse, StoreTooNew, StoreUnavailable
from perdure.core.facts import InputRow, Lease
from perdure.core.writes import Append
from perdure.stores import clock as clocks
from perdure.stores import open_store
from perdure.stores.sqlite import SqliteStore
from tests.conformance.doubles import all_at_once

HOST = """
import sys
from perdure.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
print("ready", flush=True)
input()
"""

GUEST = """
import asyncio, sys
from perdure.core.facts import InputRow
from perdure.stores.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1], host=False)
    (row,) = await store.sessions()
    print(await store.put_input(InputRow("i1", row.id, "message", b"hello", 1)), flush=True)
    await store.close()

asyncio.run(main())
"""

OPEN = """
import asyncio, sys
from perdure.stores.sqlite import SqliteStore
print("ready", flush=True)
sys.stdin.readline()
asyncio.run(SqliteStore(sys.argv[1], host=False).close())
"""


@contextmanager
def process(script: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def other_host(path: Path) -> Iterator[subprocess.Popen[str]]:
    with process(HOST, path) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started


async def lease(store: SqliteStore, key: str = "k") -> Lease:
    return (await store.take("Agent", key, host="h", hold=0)).lease


def said(text: str = "said", body: bytes = b"{}") -> Append:
    return Append(text, body, 0)


async def logged(store: SqliteStore, one: Lease) -> list[str]:
    return [row.type for row in await store.events(one.session)]


# --- one host at a time


def test_a_second_host_is_told_who_the_first_is(tmp_path: Path):
    path = tmp_path / "store.db"
    with other_host(path) as first:
        with pytest.raises(StoreInUse) as error:
            SqliteStore(path)
        assert f"process {first.pid}, since 20" in str(error.value)
        assert "stopped" not in str(error.value)


def test_a_second_host_is_told_that_the_first_is_stopped(tmp_path: Path):
    path = tmp_path / "store.db"
    with other_host(path) as first:
        os.kill(first.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(StoreInUse, match=f"it is stopped: `kill -CONT {first.pid}`"):
            SqliteStore(path)
        os.kill(first.pid, signal.SIGCONT)


async def test_death_frees_the_file_at_once(tmp_path: Path):
    path = tmp_path / "store.db"
    with other_host(path) as first:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        store = SqliteStore(path)
    assert (await lease(store)).epoch == 1
    await store.close()


async def test_another_name_of_the_file_does_not_help(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    (tmp_path / "other.db").symlink_to(tmp_path / "store.db")
    with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
        SqliteStore(tmp_path / "other.db")
    await store.close()


async def test_a_closed_store_frees_the_file_and_may_be_closed_again(tmp_path: Path):
    for _ in range(3):
        store = SqliteStore(tmp_path / "store.db")
        await store.close()
        await store.close()


async def test_all_hosts_of_an_earlier_process_are_dead(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    store.renew("old", "old", 1_000_000)
    first = (await store.take("Agent", "k", host="old", hold=0)).lease
    assert await store.owner_lives(first.session)
    await store.close()
    store = SqliteStore(tmp_path / "store.db")
    assert not await store.owner_lives(first.session)
    await store.close()


async def test_another_process_may_read_and_put_inputs(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    mine = await lease(store)
    with process(GUEST, tmp_path / "store.db") as guest:
        assert guest.stdout is not None
        assert guest.stdout.readline() == "True\n"
        assert guest.wait() == 0
    assert await store.inputs(mine.session) == [InputRow("i1", mine.session, "message", b"hello", 1)]
    await store.close()


def test_an_empty_file_may_be_opened_by_many_at_once(tmp_path: Path):
    """A host and its tools start together: each finds the schema whole."""
    assert all_at_once(OPEN, [[str(tmp_path / "store.db")]] * 6) == [0] * 6


# --- opening


@pytest.mark.parametrize(
    "url",
    ["sqlite:", "sqlite:///", "sqlite:/a.db", "sqlite://a.db", "SQLITE:///a.db", "a.db", "", "mysql://h/db"],
)
def test_a_url_with_a_typo_is_refused(url: str):
    with pytest.raises(BadStoreUrl):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresq://me:s3cr/e:t@t@host/db",
        "pg://me:s3cr/e:t@host",
        "mysql://host/db?user=me&password=s3cr/e:t",
    ],
)
def test_a_refused_url_is_quoted_without_its_password(url: str):
    with pytest.raises(BadStoreUrl) as error:
        open_store(url)
    for part in ("s3cr", "e:t", "t@t"):
        assert part not in str(error.value)
    assert "host" in str(error.value)


def test_a_file_in_a_missing_folder_is_refused(tmp_path: Path):
    with pytest.raises(BadStoreUrl, match=f"no folder {tmp_path}/nowhere"):
        open_store(f"sqlite:///{tmp_path}/nowhere/store.db")


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "letter.txt"
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(BadStoreUrl, match="is not an SQLite database"):
            SqliteStore(path)
    assert path.read_bytes() == content


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises((StoreUnavailable, BadStoreUrl)):
        SqliteStore(tmp_path)


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "store.db"
    await SqliteStore(path).close()
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE perdure_schema SET version = 1000")
    raw.close()
    for host in (True, False, True):
        with pytest.raises(StoreTooNew, match="the store has schema 1000"):
            SqliteStore(path, host=host)


async def test_a_commit_has_reached_the_disk(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")

    def pragma(name: str) -> object:
        return store._writer.raw.execute(f"PRAGMA {name}").fetchall()[0][0]

    for _ in range(2):
        assert pragma("synchronous") == 2  # FULL
        assert pragma("journal_mode") == "wal"
        assert pragma("fullfsync") == 1
        store._writer.reopen()
    await store.close()


# --- the disk


async def test_a_full_disk_loses_nothing_and_goes_on_when_there_is_room(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    mine, other = await lease(store), await lease(store, "other")
    await store.commit(mine, said("before"))
    pages = store._writer.raw.execute("PRAGMA page_count").fetchall()[0][0]
    store._writer.raw.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = said("large", b"x" * 100_000)
    queued = [store.commit(mine, large), store.commit(other, said("beside"))]
    answers = await asyncio.gather(*queued, return_exceptions=True)
    assert [type(one) for one in answers] == [StoreUnavailable, StoreUnavailable]
    assert "the disk is full" in str(answers[0])
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        store.commit_now(mine, large)
    assert await logged(store, mine) == ["before"]
    store._writer.raw.execute("PRAGMA max_page_count = 1000000")
    for one in answers:
        assert isinstance(one, StoreUnavailable)
        assert one.again is not None
        await one.again()
    assert await store.commit(mine, said("after")) == 3
    assert await logged(store, mine) == ["before", "large", "after"]
    assert await logged(store, other) == ["beside"]
    await store.close()


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Writing beyond `size` bytes of any file is an I/O error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 4096 * 3, 4096 * 20 + 17])
async def test_a_write_error_loses_nothing_and_goes_on_when_it_is_over(tmp_path: Path, room: int):
    store = SqliteStore(tmp_path / "store.db")
    mine = await lease(store)
    await store.commit(mine, said("before"))
    log = tmp_path / "store.db-wal"
    with files_end_at(log.stat().st_size + room):
        with pytest.raises(StoreUnavailable) as told:
            await store.commit(mine, said("large", b"x" * 200_000))
        assert await logged(store, mine) == ["before"]
    assert told.value.again is not None
    assert await told.value.again() == 2
    assert await store.commit(mine, said("after")) == 3
    await store.close()
    store = SqliteStore(tmp_path / "store.db")
    assert await logged(store, mine) == ["before", "large", "after"]
    await store.close()


async def test_a_reader_whose_connection_broke_opens_a_new_one(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    mine = await lease(store)
    store._reader.raw.close()
    store._reader.raw = Broken()
    assert (await store.sessions())[0].id == mine.session
    await store.close()


class Broken:
    def execute(self, *_: object) -> object:
        raise apsw.IOError("the disk was pulled out")

    def close(self, force: bool = False) -> None: ...


# --- time


async def test_the_clock_never_runs_backwards(monkeypatch: pytest.MonkeyPatch):
    wall, since = 1_000_000_000_000, 50.0
    monkeypatch.setattr(time, "time_ns", lambda: wall * 1_000_000)
    monkeypatch.setattr(clocks, "monotonic", lambda: since)
    clock = clocks.SystemClock()
    assert clock.now() == wall
    wall += 5_000
    since += 5
    assert clock.now() == 1_000_000_005_000
    wall -= 3_600_000  # an hour back
    assert clock.now() == 1_000_000_005_000
    wall += 10_000
    since += 10
    assert clock.now() == 1_000_000_010_000, "half speed until it has caught up"
    wall += 7_200_000
    since += 7_200
    assert clock.now() == wall


async def test_the_clock_of_a_new_process_does_not_run_behind_the_old_one(tmp_path: Path):
    ahead = clocks.SystemClock(not_before=clocks.SystemClock().now() + 3_600_000)
    store = SqliteStore(tmp_path / "store.db", clock=ahead)
    store.renew("h", "h", 1_000)
    was = store.now()
    await store.close()
    store = SqliteStore(tmp_path / "store.db")
    assert store.now() >= was - 1_000
    await store.close()
