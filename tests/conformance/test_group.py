"""Group commit: who waits together is flushed together, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from perdure.core.errors import Conflict, StoreUnavailable
from perdure.core.facts import Lease
from perdure.core.writes import Append
from perdure.stores.group import Group, Task
from perdure.stores.sqlite import SqliteStore
from tests.conformance.doubles import Flaky


@pytest.fixture
async def store(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    store.group.connection = Flaky(store.group.connection)
    yield store
    await store.close()


def flushed(store: SqliteStore) -> int:
    assert isinstance(store.group.connection, Flaky)
    return store.group.connection.flushed


async def lease(store: SqliteStore, key: str) -> Lease:
    return (await store.take("Agent", key, host="h", hold=0)).lease


def said(text: str = "said") -> Append:
    return Append(text, b"{}", 0)


async def test_a_commit_alone_is_flushed_without_a_thread(store: SqliteStore):
    mine = await lease(store, "k")
    before = flushed(store)
    for n in range(5):
        assert await store.commit(mine, said()) == n + 1
    assert flushed(store) == before + 5
    assert "perdure-writer" not in [one.name for one in threading.enumerate()]


async def test_commits_that_wait_together_share_one_flush(store: SqliteStore):
    leases = [await lease(store, f"k{n}") for n in range(100)]
    before = flushed(store)
    await asyncio.gather(*(store.commit(one, said()) for one in leases))
    assert flushed(store) == before + 1


async def test_what_arrives_during_a_flush_shares_the_next(store: SqliteStore):
    leases = [await lease(store, f"k{n}") for n in range(64)]
    before = flushed(store)

    async def work(mine: Lease) -> None:
        for _ in range(10):
            await store.commit(mine, said())

    await asyncio.gather(*(work(one) for one in leases))
    assert flushed(store) - before < 64 * 10 / 8


async def test_a_refused_commit_costs_a_few_flushes_and_not_one_per_neighbour(store: SqliteStore):
    leases = [await lease(store, f"k{n}") for n in range(100)]
    before = flushed(store)
    queued = [
        store.commit(one, Append("\ud800" if n == 50 else "good", b"", 0)) for n, one in enumerate(leases)
    ]
    answers = await asyncio.gather(*queued, return_exceptions=True)
    assert [type(one) for one in answers].count(Conflict) == 1
    assert answers.count(1) == 99
    assert flushed(store) - before == 2


async def test_a_thread_that_blocks_is_served_under_any_load(store: SqliteStore):
    """The lease is renewed from such a thread: under load it must not starve."""
    leases = [await lease(store, f"k{n}") for n in range(64)]
    waits: list[float] = []

    def renew() -> None:
        for _ in range(20):
            begun = time.monotonic()
            store.renew("h", "h", 15_000)
            waits.append(time.monotonic() - begun)

    async def work(mine: Lease) -> None:
        while not renewing.done():
            store.commit(mine, said())
            await store.commit(mine, said())

    renewing = asyncio.create_task(asyncio.to_thread(renew))
    await asyncio.gather(*(work(one) for one in leases))
    assert max(waits) < 2


async def test_an_interrupt_in_mid_transaction_leaves_the_store_whole(store: SqliteStore):
    mine, other = await lease(store, "k"), await lease(store, "other")

    def interrupt() -> None:
        raise KeyboardInterrupt

    assert isinstance(store.group.connection, Flaky)
    store.group.connection.before_commit = interrupt
    beside = store.commit(other, said("beside"))
    with pytest.raises(KeyboardInterrupt):
        store.commit_now(mine, said("cut"))
    store.group.connection.before_commit = None
    with pytest.raises(StoreUnavailable) as told:
        await beside
    assert told.value.again is not None
    assert await told.value.again() == 1
    assert store.commit_now(mine, said("later")) == 1


async def test_what_waits_is_flushed_by_close_and_what_comes_later_is_refused(tmp_path: Path):
    store = SqliteStore(tmp_path / "store.db")
    mine = await lease(store, "k")
    queued = [store.commit(mine, said()) for _ in range(5)]
    await store.close()
    assert await asyncio.gather(*queued) == [1, 2, 3, 4, 5]
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.commit(mine, said())
    with pytest.raises(StoreUnavailable, match="closed"):
        store.commit_now(mine, said())
    await store.close()


async def test_a_loop_that_was_closed_does_not_harm_the_writer(store: SqliteStore):
    mine = await lease(store, "k")

    async def leave_behind() -> None:
        for _ in range(3):
            store.commit(mine, said("left behind"))

    await asyncio.to_thread(asyncio.run, leave_behind())
    assert await store.commit(mine, said()) in (1, 4)
    assert await asyncio.gather(store.commit(mine, said()), store.commit(mine, said()))


async def test_two_loops_share_one_store(store: SqliteStore):
    async def work(key: str) -> list[int]:
        mine = await lease(store, key)
        return [await store.commit(mine, said()) for _ in range(50)]

    other = asyncio.create_task(asyncio.to_thread(asyncio.run, work("other")))
    assert await work("mine") == list(range(1, 51))
    assert await other == list(range(1, 51))


async def test_the_units_of_a_group_lock_their_sessions_in_one_order(store: SqliteStore):
    applied: list[str] = []
    group = Group(store.group.connection, inline=False)
    units = [Task(lambda _, n=n: applied.append(f"{n}"), f"session {n % 3}") for n in range(6)]
    units.insert(0, Task(lambda _: applied.append("none")))
    await asyncio.gather(*(group.submit(unit) for unit in units))
    group.close()
    assert applied == ["0", "3", "1", "4", "2", "5", "none"]
